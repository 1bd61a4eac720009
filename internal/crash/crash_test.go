package crash_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ledgerd/ledgerd/client"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1/batchv1connect"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

const (
	users    = 20
	callers  = 16
	killFor  = 12 * time.Second
	enough   = 200             // definite answers during the kills
	patience = 3 * time.Minute // for these answers, and for a definite answer after the kills
)

// attempt is one transfer, or two transfers in different assets with a submit token and a message that must
// commit together. It records the answer that the caller got.
type attempt struct {
	key      string
	request  *ledgerv1.TransferRequest
	second   *ledgerv1.TransferRequest // nil: a single transfer
	token    string                    // of two transfers
	transfer int64                     // set when done
	refused  bool                      // finally, by a business rule
	era      int32                     // era of the database in which the answer came
	loyal    bool                      // always uses the first server, with a long timeout
}

func (a *attempt) definite() bool { return a.transfer != 0 || a.refused }

// world is the system under test.
type world struct {
	t       *testing.T
	db      *pgtest.Durable
	lines   []*line // from the servers to the database; empty: no proxies
	servers []*server
	apiKey  string
	args    []string             // of the servers
	argsOf  func(n int) []string // more of one server; nil: none
	decided atomic.Int32         // attempts with a definite answer
	refused atomic.Int32         // answers that refuse

	soldOut, stateTaken atomic.Bool // refusals of baskets
	outcomes            struct {    // of visits
		sync.Mutex
		of map[string]int64
	}

	nemesis
	binary string          // of the servers; empty: build it
	next   *pgtest.Durable // where the database will move
	clock  pgtest.ShiftedClock
	era    atomic.Int32 // of the database
	lost   atomic.Int32 // answers that are no longer true
}

// TestNothingAcknowledgedIsLostAndNothingHappensTwice repeatedly kills both servers and Postgres with SIGKILL
// while callers move money. Callers retry unanswered calls with the same key.
func TestNothingAcknowledgedIsLostAndNothingHappensTwice(t *testing.T) {
	t.Parallel()
	w := &world{t: t, db: pgtest.NewDurable(t)}
	w.begin()
	stop := make(chan struct{})
	var load sync.WaitGroup
	done := make([][]*attempt, callers)
	for n := range callers {
		load.Add(1)
		go func() {
			defer load.Done()
			done[n] = w.caller(n, stop)
		}()
	}
	kills := w.killAtRandom(killFor)
	close(stop)
	load.Wait()
	all := slices.Concat(done...)
	t.Logf("killed %v", kills)
	if kills["postgres"] == 0 || kills["server"] == 0 {
		t.Error("the test killed too little")
	}
	w.settle(all)
	w.judge(all)
}

// begin starts the servers and funds every user.
func (w *world) begin() {
	ctx := context.Background()
	pool := pgtest.Pool(w.t, w.db.SuperDSN)
	tenant, err := access.EnsureTenant(ctx, pool, "crash")
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := access.Administer(pool).CreateKey(ctx, tenant,
		access.NewKey{Principal: "tester", Rights: access.Rights{Role: access.Admin}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.apiKey = key.Secret
	pool.Close()
	if w.binary == "" {
		w.binary = build(w.t)
	}
	for i := range 2 {
		dsn := w.db.AppDSN
		if len(w.lines) > 0 {
			dsn = w.lines[i].DSN
		}
		args := w.args
		if w.argsOf != nil {
			args = slices.Concat(args, w.argsOf(i))
		}
		w.servers = append(w.servers, startServer(w.t, w.binary, dsn, args...))
	}
	c := w.client(0)
	if _, err := c.CreateAssets(ctx, &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2},
		{Code: "POINT", Scale: 2}}}); err != nil {
		w.t.Fatal(err)
	}
	var accounts []*ledgerv1.NewAccount
	for _, asset := range []string{"CNY", "POINT"} {
		accounts = append(accounts, &ledgerv1.NewAccount{Code: "world", Asset: asset, Unbounded: true})
		for i := range users {
			accounts = append(accounts, &ledgerv1.NewAccount{Code: user(i), Asset: asset})
		}
	}
	if _, err := c.CreateAccounts(ctx, &ledgerv1.CreateAccountsRequest{Accounts: accounts}); err != nil {
		w.t.Fatal(err)
	}
	for i := range users {
		r := transfer(fmt.Sprint("top-up-", i), "world", user(i), "20.00")
		r.Postings = append(r.Postings, points(r.GetBizNo(), "world", user(i), "20.00").GetPostings()...)
		if _, err := c.Transfer(ctx, r); err != nil {
			w.t.Fatal(err)
		}
	}
}

func user(i int) string { return fmt.Sprintf("user:%d", i) }

func transfer(bizNo, from, to, amount string) *ledgerv1.TransferRequest {
	return &ledgerv1.TransferRequest{BizNo: bizNo,
		Postings: []*ledgerv1.Posting{{From: from, To: to, Asset: "CNY", Amount: amount}}}
}

func points(bizNo, from, to, amount string) *ledgerv1.TransferRequest {
	r := transfer(bizNo, from, to, amount)
	r.Postings[0].Asset = "POINT"
	return r
}

func (w *world) url(n int) string { return "http://" + w.servers[n].address() }

// client calls a server at its current address.
func (w *world) client(n int) ledgerv1connect.LedgerServiceClient {
	return ledgerv1connect.NewLedgerServiceClient(http.DefaultClient, w.url(n), w.auth())
}

// auth adds the API key, and the request key from the context.
func (w *world) auth() connect.Option {
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+w.apiKey)
			if key, ok := ctx.Value(keyName{}).(string); ok {
				r.Header().Set("Idempotency-Key", key)
			}
			return next(ctx, r)
		}
	}))
}

type keyName struct{}

// send tries once and records a definite answer.
func (w *world) send(a *attempt) (told bool) {
	if a.second != nil && a.token == "" {
		if a.token = w.issue(); a.token == "" {
			return false
		}
	}
	wait := 2 * time.Second
	if a.loyal {
		wait = patience
	}
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), keyName{}, a.key), wait)
	defer cancel()
	id, err := w.try(ctx, a)
	refused := connect.CodeOf(err) == connect.CodeFailedPrecondition
	if err != nil && !refused {
		// the token was lost with the old database: issue another one
		if client.ReasonOf(err) == client.ReasonTokenUnknown && w.era.Load() == afterwards {
			a.token = ""
		}
		<-time.After(5 * time.Millisecond)
		return false
	}
	era := w.era.Load()
	different := a.transfer != id || a.refused != refused
	if a.definite() && different {
		if w.lost.Add(1); a.era != atRisk {
			w.t.Errorf("%s: first answer transfer %d, now %d, %v", a.key, a.transfer, id, err)
		}
	}
	if different || era == afterwards {
		a.era = era
	}
	a.transfer, a.refused = id, refused
	if refused {
		w.refused.Add(1)
	}
	return true
}

// try calls a server and returns the id of the transfer, or of the first of two.
func (w *world) try(ctx context.Context, a *attempt) (id int64, err error) {
	n := rand.IntN(len(w.servers))
	if a.loyal {
		n = 0
	}
	if a.second == nil {
		res, err := ledgerv1connect.NewLedgerServiceClient(http.DefaultClient, w.url(n), w.auth()).Transfer(ctx,
			a.request)
		return res.GetTransfer().GetId(), err
	}
	r := &batchv1.ExecuteRequest{}
	for _, t := range []proto.Message{a.request, &idempotencyv1.SpendTokenRequest{Token: a.token},
		&inboxv1.ReceiveRequest{Key: &inboxv1.MessageKey{ConsumerGroup: "crash", MessageId: a.key}}, a.second} {
		packed, err := anypb.New(t)
		if err != nil {
			return 0, err
		}
		r.Operations = append(r.Operations, &batchv1.Operation{Request: packed})
	}
	res, err := batchv1connect.NewBatchServiceClient(http.DefaultClient, w.url(n), w.auth()).Execute(ctx, r)
	if err != nil {
		return 0, err
	}
	first := new(ledgerv1.TransferResponse)
	if err := res.GetResults()[0].GetResponse().UnmarshalTo(first); err != nil {
		return 0, err
	}
	return first.GetTransfer().GetId(), nil
}

// caller moves money until stop, sometimes more than available, and retries unanswered calls.
func (w *world) caller(n int, stop <-chan struct{}) (all []*attempt) {
	for i := 0; ; i++ {
		from, to := rand.IntN(users), rand.IntN(users-1)
		if to >= from {
			to++
		}
		name := fmt.Sprintf("caller-%d-%d", n, i)
		a := &attempt{key: "key-" + name, loyal: n < w.loyal,
			request: transfer(name, user(from), user(to), fmt.Sprintf("%d.%02d", rand.IntN(8), 1+rand.IntN(99)))}
		if p := a.request.GetPostings()[0]; w.hot && i%4 != 0 {
			p.From, p.To = "world", user(0)
		}
		if i%2 == 0 { // two transfers, of which the second may be refused
			a.second = points("second-"+name, user(to), user((to+1)%users),
				fmt.Sprintf("%d.%02d", rand.IntN(12), 1+rand.IntN(99)))
		}
		all = append(all, a)
		for !a.definite() {
			select {
			case <-stop:
				return all
			default:
			}
			w.send(a)
		}
		w.decided.Add(1)
		if i%4 == 3 {
			w.send(all[rand.IntN(len(all))]) // a repeat
		}
	}
}

// killAtRandom repeatedly kills and restarts one of the three processes, for some time, and then until enough has
// happened or patience runs out.
func (w *world) killAtRandom(least time.Duration) (kills map[string]int) {
	kills = map[string]int{}
	begun := time.Now()
	for time.Since(begun) < least || time.Since(begun) < patience &&
		(kills["postgres"] == 0 || kills["server"] == 0 || w.decided.Load() < enough) {
		<-time.After(time.Duration(200+rand.IntN(800)) * time.Millisecond)
		switch n := rand.IntN(3); n {
		case 2:
			kills["postgres"]++
			w.db.Server.Kill()
			w.db.Restart(w.t)
		default:
			kills["server"]++
			w.servers[n].kill()
			w.servers[n].start(w.t)
		}
	}
	return kills
}

// settle retries open attempts until each has a definite answer.
func (w *world) settle(all []*attempt) {
	for _, a := range all {
		if !a.definite() {
			w.ask(a)
		}
	}
}

// ask retries until there is an answer.
func (w *world) ask(a *attempt) {
	for end := time.Now().Add(patience); !w.send(a); {
		if time.Now().After(end) {
			w.t.Fatalf("%s has no definite answer", a.key)
		}
	}
}

// judge repeats every attempt, then compares the answers with the database: the transfers, and the balances
// that follow from them.
func (w *world) judge(all []*attempt) {
	made, refused, pairs := 0, 0, 0
	for _, a := range all {
		w.ask(a) // the same answer, or the test fails
		switch {
		case a.transfer == 0:
			refused++
		case a.second != nil:
			pairs++
			fallthrough
		default:
			made++
		}
	}
	w.t.Logf("%d done, %d of them pairs, %d refused", made, pairs, refused)
	if made == 0 || pairs == 0 || refused == 0 {
		w.t.Error("the test exercised too little")
	}
	pool := pgtest.Pool(w.t, w.db.SuperDSN)
	var spent, received int
	if err := pool.QueryRow(context.Background(), `select (select count(*) from token_submit_tokens
		where state = 'spent'),
		(select count(*) from inbox_messages
		where state = 'succeeded')`).Scan(&spent, &received); err != nil || spent != pairs || received != pairs {
		w.t.Errorf("%d pairs were acknowledged, but %d tokens are spent, %d messages received, %v", pairs, spent,
			received, err)
	}
	stored := w.numbers(pool, "select biz_no, transfer_id from ledger_transfers where biz_no like 'caller-%' "+
		"or biz_no like 'second-%'")
	if len(stored) != made+pairs {
		w.t.Errorf("%d transfers were acknowledged, %d are stored", made+pairs, len(stored))
	}
	balances := map[string]int64{}
	for _, a := range all {
		if stored[a.request.GetBizNo()] != a.transfer {
			w.t.Errorf("%s: acknowledged %d, stored %d", a.request.GetBizNo(), a.transfer, stored[a.request.GetBizNo()])
		}
		if second := stored[a.second.GetBizNo()]; a.second != nil && (second != 0) != (a.transfer != 0) {
			w.t.Errorf("of the pair %s the first is %d, the second %d", a.request.GetBizNo(), a.transfer, second)
		}
		if a.transfer != 0 {
			move(balances, a.request)
			move(balances, a.second)
		}
	}
	for account, balance := range w.numbers(pool,
		"select code || ' ' || asset, balance::bigint from ledger_accounts where code like 'user:%'") {
		if want := 2000 + balances[account]; balance != want {
			w.t.Errorf("%s has %d, acknowledged transfers give %d", account, balance, want)
		}
	}
}

// numbers returns a query's numbers by name.
func (w *world) numbers(pool *pgxpool.Pool, query string) map[string]int64 {
	rows, err := pool.Query(context.Background(), query)
	if err != nil {
		w.t.Fatal(err)
	}
	numbers := map[string]int64{}
	var name string
	var number int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &number},
		func() error { numbers[name] = number; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return numbers
}

// move applies a transfer, if any, to a map of balances.
func move(balances map[string]int64, r *ledgerv1.TransferRequest) {
	for _, p := range r.GetPostings() {
		cents, err := strconv.ParseInt(strings.Replace(p.GetAmount(), ".", "", 1), 10, 64)
		if err != nil {
			panic(err)
		}
		balances[p.GetFrom()+" "+p.GetAsset()] -= cents
		balances[p.GetTo()+" "+p.GetAsset()] += cents
	}
}

func TestMain(m *testing.M) { pgtest.Main(m) }
