package crash_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ledgerd/ledgerd/client"
	approvalv1 "github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestApprovedRequestsAreDoneDespiteKills repeatedly kills both servers and Postgres while one principal requests
// transfers and another approves them. A request is done if, and only if, it is approved.
func TestApprovedRequestsAreDoneDespiteKills(t *testing.T) {
	t.Parallel()
	w := &world{t: t, db: pgtest.NewDurable(t)}
	w.begin()
	pool := pgtest.Pool(t, w.db.SuperDSN)
	key, err := access.Administer(pool).CreateKey(context.Background(), 1,
		access.NewKey{Principal: "approver", Rights: access.Rights{Role: access.Write}})
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	stop := make(chan struct{})
	var load sync.WaitGroup
	done := make([]int, callers)
	for n := range callers {
		load.Go(func() { done[n] = w.approver(key.Secret, n, stop) })
	}
	kills := w.killAtRandom(killFor)
	close(stop)
	load.Wait()
	acknowledged := 0
	for _, n := range done {
		acknowledged += n
	}
	t.Logf("%d approvals, killed %v", acknowledged, kills)
	if acknowledged < callers || kills["postgres"] == 0 || kills["server"] == 0 {
		t.Error("the test tried too little")
	}
	pool = pgtest.Pool(t, w.db.SuperDSN)
	var approved, made, both int
	if err := pool.QueryRow(context.Background(), `select
		(select count(*) from approval_requests where state = 'approved'),
		(select count(*) from ledger_transfers where biz_no like 'wish-%'),
		(select count(*) from approval_requests a join ledger_transfers t using (tenant_id)
			where a.state = 'approved' and t.biz_no = a.reason and t.request_id = a.decided_request_id)`).
		Scan(&approved, &made, &both); err != nil {
		t.Fatal(err)
	}
	if approved != acknowledged || made != approved || both != approved {
		t.Errorf("%d are acknowledged, %d approved, %d transfers made, %d of them by their approval",
			acknowledged, approved,
			made, both)
	}
}

// approver requests and approves transfers until stop, and retries each call until it is acknowledged. It returns the
// number of transfers.
func (w *world) approver(key string, n int, stop <-chan struct{}) (acknowledged int) {
	for ; ; acknowledged++ {
		name := fmt.Sprintf("wish-%d-%d", n, acknowledged)
		packed, err := anypb.New(transfer(name, "world", user(0), "0.01"))
		if err != nil {
			w.t.Error(err)
			return acknowledged
		}
		var id int64
		w.untilAnswered(name, w.apiKey, func(ctx context.Context, c *client.Client) error {
			res, err := c.Approvals.RequestApproval(client.WithKey(ctx, name),
				&approvalv1.RequestApprovalRequest{Request: packed, Reason: name})
			id = res.GetApproval().GetId()
			return err
		})
		w.untilAnswered(name, key, func(ctx context.Context, c *client.Client) error {
			res, err := c.Approvals.Approve(ctx, &approvalv1.ApproveRequest{ApprovalId: id})
			if err == nil && res.GetResponse() == nil {
				w.t.Errorf("%s: no response", name)
			}
			return err
		})
		w.decided.Add(1)
		select {
		case <-stop:
			return acknowledged + 1
		default:
		}
	}
}

// untilAnswered calls random servers until one answers.
func (w *world) untilAnswered(name, key string, call func(context.Context, *client.Client) error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		c := client.New("http://"+w.servers[rand.IntN(len(w.servers))].address(), client.WithAPIKey(key),
			client.WithRetry(1, 0, 0))
		err := call(ctx, c)
		c.Close()
		cancel()
		if err == nil {
			return
		}
		if e, _ := client.AsError(err); e == nil || e.Class != client.ClassSystem && e.Class != "" {
			w.t.Errorf("%s: %v", name, err)
			return
		}
	}
	w.t.Errorf("%s has no definite answer", name)
}
