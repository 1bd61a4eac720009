package crash_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// form is a form that a caller submits until its outcome is known, each time as another transfer with another
// request key: only its token prevents duplicates.
type form struct {
	name  string
	token string
	made  string // biz_no of the acknowledged transfer
}

// TestAFormIsSubmittedOnceDespiteKills repeatedly kills both servers and Postgres while forms are submitted.
func TestAFormIsSubmittedOnceDespiteKills(t *testing.T) {
	t.Parallel()
	w := &world{t: t, db: pgtest.NewDurable(t)}
	w.begin()
	stop := make(chan struct{})
	var load sync.WaitGroup
	done := make([][]*form, callers)
	for n := range callers {
		load.Go(func() { done[n] = w.submitter(n, stop) })
	}
	kills := w.killAtRandom(killFor)
	close(stop)
	load.Wait()
	forms := map[string]*form{}
	repeats := 0
	for _, d := range done {
		for _, f := range d {
			forms[f.name] = f
			if f.made != f.name+"-0" {
				repeats++
			}
		}
	}
	t.Logf("%d forms, %d of them submitted again, killed %v", len(forms), repeats, kills)
	if len(forms) < callers || repeats == 0 || kills["postgres"] == 0 || kills["server"] == 0 {
		t.Error("the test tried too little")
	}
	w.judgeForms(forms)
}

// submitter submits one form after the other until stop.
func (w *world) submitter(n int, stop <-chan struct{}) (all []*form) {
	next := ""
	for i := 0; ; i++ {
		f := &form{name: fmt.Sprintf("form-%d-%d", n, i), token: next}
		end := time.Now().Add(patience)
		for try := 0; f.made == ""; {
			if time.Now().After(end) {
				w.t.Errorf("%s has no definite answer", f.name)
				return all
			}
			if f.token == "" {
				f.token = w.issue()
				continue
			}
			next = w.submit(f, try)
			try++
		}
		all = append(all, f)
		w.decided.Add(1)
		select {
		case <-stop:
			return all
		default:
		}
	}
}

// once is a client of one server that does not retry.
func (w *world) once() *client.Client {
	return client.New("http://"+w.servers[rand.IntN(len(w.servers))].address(), client.WithAPIKey(w.apiKey),
		client.WithRetry(1, 0, 0))
}

func (w *world) issue() string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c := w.once()
	defer c.Close()
	res, err := c.Idempotency.IssueTokens(ctx, &idempotencyv1.IssueTokensRequest{Life: durationpb.New(time.Hour)})
	if err != nil {
		return ""
	}
	return res.GetTokens()[0]
}

// submit submits a form and records the answer.
func (w *world) submit(f *form, try int) (next string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c := w.once()
	defer c.Close()
	ctx, info := client.WithInfo(client.WithSubmitToken(ctx, client.SubmitToken{Token: f.token, Next: true}))
	bizNo := fmt.Sprintf("%s-%d", f.name, try)
	_, err := c.Ledger.Transfer(ctx, transfer(bizNo, "world", user(0), "0.01"))
	e, _ := client.AsError(err)
	switch {
	case err == nil:
		f.made = bizNo
		return info.NextToken
	case errors.Is(err, client.ReasonTokenSpent):
		f.made = e.Metadata["first_biz_no"]
	case e == nil || e.Class != client.ClassSystem && e.Class != "":
		w.t.Errorf("%s: %v", bizNo, err)
	}
	return ""
}

// judgeForms checks the database: one transfer per form, the acknowledged one.
func (w *world) judgeForms(forms map[string]*form) {
	rows, err := pgtest.Pool(w.t, w.db.SuperDSN).Query(context.Background(),
		"select substring(biz_no from '^form-[0-9]+-[0-9]+'), biz_no from ledger_transfers where biz_no like 'form-%'")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	stored := map[string]string{}
	for rows.Next() {
		var name, bizNo string
		if err := rows.Scan(&name, &bizNo); err != nil {
			w.t.Fatal(err)
		}
		if stored[name] != "" {
			w.t.Errorf("%s was submitted as %s and as %s", name, stored[name], bizNo)
		}
		stored[name] = bizNo
	}
	for name, f := range forms {
		if stored[name] != f.made {
			w.t.Errorf("%s was acknowledged as %q, and is %q", name, f.made, stored[name])
		}
	}
}
