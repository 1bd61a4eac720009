package client_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// wrong is a call that fails.
type wrong struct {
	why     string
	want    client.Reason // empty: the client itself returns the error
	request *ledgerv1.TransferRequest
	key     string // empty: a generated key
}

// changed is a valid transfer with one change that makes it fail.
func changed(why string, change func(r *ledgerv1.TransferRequest)) *ledgerv1.TransferRequest {
	r := transfer(why, "alice", "bob", "1.00")
	change(r)
	return r
}

func wrongs() []wrong {
	alice := &ledgerv1.AccountRef{Code: "alice", Asset: "CNY"}
	return []wrong{
		{why: "no biz_no", want: client.ReasonFieldInvalid, request: transfer("", "alice", "bob", "1.00")},
		{why: "two fields", want: client.ReasonFieldInvalid,
			request: changed("two", func(r *ledgerv1.TransferRequest) { r.BizNo, r.Postings = "", nil })},
		{why: "30 fields", want: client.ReasonFieldInvalid, request: changed("30", func(r *ledgerv1.TransferRequest) {
			r.Postings = slices.Repeat([]*ledgerv1.Posting{{Asset: "CNY", Amount: "-1"}}, 30)
		})},
		{why: "1,001 postings", want: client.ReasonFieldInvalid,
			request: changed("1001", func(r *ledgerv1.TransferRequest) {
				r.Postings = slices.Repeat(r.GetPostings(), 1001)
			})},
		{why: "NUL", want: client.ReasonFieldInvalid,
			request: changed("NUL", func(r *ledgerv1.TransferRequest) { r.Metadata = map[string]string{"a": "\x00"} })},
		{why: "not ASCII", want: client.ReasonFieldInvalid, request: transfer("größe", "alice", "bob", "1.00")},
		{why: "below zero", want: client.ReasonFieldInvalid, request: transfer("below", "alice", "bob", "-1")},
		{why: "to itself", want: client.ReasonFieldInvalid, request: transfer("itself", "bob", "bob", "1")},
		{why: "far ahead", want: client.ReasonFieldInvalid,
			request: changed("ahead", func(r *ledgerv1.TransferRequest) {
				r.EffectiveTime = timestamppb.New(time.Now().AddDate(1, 0, 0).Truncate(time.Second))
			})},
		{why: "not UTF-8", request: transfer("utf8", "alice\xff", "bob", "1.00")},
		{why: "key reused", want: client.ReasonKeyReused, request: transfer("reused", "alice", "bob", "1.00"),
			key: "used"},
		{why: "another thing's biz_no", want: client.ReasonBizNoExistsDifferent,
			request: transfer("top-up", "alice", "bob", "1.00")},
		{why: "nobody", want: client.ReasonAccountNotFound, request: transfer("nobody", "nobody", "bob", "1.00")},
		{why: "too precise", want: client.ReasonAmountTooPrecise,
			request: transfer("precise", "alice", "bob", "1.001")},
		{why: "too large", want: client.ReasonAmountTooLarge,
			request: transfer("large", "world", "bob", strings.Repeat("9", 38))},
		{why: "all of the world", want: client.ReasonAvailableUnbounded,
			request: changed("all", func(r *ledgerv1.TransferRequest) {
				r.Postings[0] = &ledgerv1.Posting{From: "world", To: "bob", Asset: "CNY",
					Form: ledgerv1.AmountForm_AMOUNT_FORM_ALL_AVAILABLE}
			})},
		{why: "stale", want: client.ReasonStaleVersion, request: changed("stale", func(r *ledgerv1.TransferRequest) {
			r.Conditions = []*ledgerv1.Condition{{Account: alice, Version: proto.Int64(77)}}
		})},
		{why: "condition", want: client.ReasonBalanceConditionFailed,
			request: changed("condition", func(r *ledgerv1.TransferRequest) {
				r.Conditions = []*ledgerv1.Condition{{Account: alice, BalanceAtLeast: proto.String("1000")}}
			})},
		{why: "insufficient funds", want: client.ReasonInsufficientFunds,
			request: transfer("poor", "shop", "bob", "1.00")},
		{why: "closed", want: client.ReasonAccountClosed, request: transfer("closed", "alice", "closed", "1.00")},
		{why: "frozen", want: client.ReasonAccountFrozen, request: transfer("frozen", "frozen", "bob", "1.00")},
		{why: "greatest balance", want: client.ReasonBalanceLimitExceeded,
			request: transfer("limit", "alice", "small", "1.01")},
		{why: "refused before", want: client.ReasonInsufficientFunds,
			request: transfer("before", "shop", "bob", "1.00"), key: "refused"},
	}
}

// prepareWrongs creates the objects in wrongs. Earlier calls with reused keys have their own request ids.
func prepareWrongs(t *testing.T, url string) {
	t.Helper()
	c := newClient(t, url, named("the-first"))
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Ledger.CreateAccounts(t.Context(),
		&ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "closed", Asset: "CNY"},
			{Code: "frozen", Asset: "CNY"}, {Code: "small", Asset: "CNY", MaxBalance: proto.String("1")}}}))
	must(c.Ledger.CloseAccount(t.Context(),
		&ledgerv1.CloseAccountRequest{Account: &ledgerv1.AccountRef{Code: "closed", Asset: "CNY"}}))
	must(c.Ledger.FreezeAccount(t.Context(),
		&ledgerv1.FreezeAccountRequest{Account: &ledgerv1.AccountRef{Code: "frozen", Asset: "CNY"}}))
	must(c.Ledger.Transfer(client.WithKey(t.Context(), "used"), transfer("used", "world", "bob", "1.00")))
	_, err := c.Ledger.Transfer(client.WithKey(t.Context(), "refused"), transfer("before", "shop", "bob", "1.00"))
	if e, ok := client.AsError(err); !ok || e.RequestID != "the-first" {
		t.Fatal(err)
	}
}

// named gives every call the same request id, so that answers can be compared completely.
func named(id string) client.Option {
	return client.WithRequestID(func(context.Context) string { return id })
}

func (w wrong) context(ctx context.Context) context.Context {
	if w.key == "" {
		return ctx
	}
	return client.WithKey(ctx, w.key)
}

func TestAnErrorIsTheSameAloneGatheredAndInABatch(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	prepareWrongs(t, url)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		opts = append(opts, named("now"))
		cases := wrongs()
		lone := callAlone(t, newClient(t, url, opts...), cases)
		for i, w := range cases {
			e, ok := client.AsError(lone[i].err)
			if !ok || e.Reason != w.want || w.want != "" &&
				e.RequestID != map[bool]string{false: "now", true: "the-first"}[w.key == "refused"] {
				t.Errorf("%s: %+v", w.why, e)
			}
			if lone[i].info.Replayed != (w.key == "refused") {
				t.Errorf("%s: replayed %v", w.why, lone[i].info.Replayed)
			}
		}
		gathered := callGathered(t, url, cases, opts...)
		results := callBatch(t, newClient(t, url, opts...), cases)
		for i, w := range cases {
			sameError(t, w.why+", gathered", gathered[i].err, lone[i].err)
			if a, b := *gathered[i].info, *lone[i].info; w.key != "" && a != b || a.Replayed != b.Replayed ||
				a.RequestID != b.RequestID {
				t.Errorf("%s: gathered %+v, alone %+v", w.why, a, b)
			}
			if r := results[i]; r != nil {
				sameError(t, w.why+", as an item", client.ItemError(r.GetError()), lone[i].err)
				if r.GetReplayed() != lone[i].info.Replayed {
					t.Errorf("%s: replayed %v", w.why, r.GetReplayed())
				}
			}
		}
	})
	if client.ItemError(nil) != nil {
		t.Error("a nil error was decoded as an error")
	}
}

func callAlone(t *testing.T, c *client.Client, cases []wrong) []answer {
	t.Helper()
	answers := make([]answer, len(cases))
	for i, w := range cases {
		answers[i] = together(w.context(t.Context()), c, []*ledgerv1.TransferRequest{w.request})[0]
	}
	return answers
}

// callGathered makes all calls in one batch, except for those that cannot be encoded.
func callGathered(t *testing.T, url string, cases []wrong, opts ...client.Option) []answer {
	t.Helper()
	c, seen, free := gatherBehind(t, url, opts...)
	answers, done := make([]answer, len(cases)), make([]<-chan []answer, len(cases))
	for i, w := range cases {
		if w.want != "" {
			done[i] = inLine(w.context(t.Context()), c, []*ledgerv1.TransferRequest{w.request})
		}
	}
	free()
	for i, w := range cases {
		if w.want != "" {
			answers[i] = (<-done[i])[0]
		}
	}
	if lone, batches := len(seen.of(transferProcedure)), len(seen.of(batchProcedure)); lone != 0 || batches == 0 ||
		batches > client.GatherLanes {
		t.Errorf("%d single calls, %d batches", lone, batches)
	}
	for i, w := range cases {
		if w.want == "" {
			answers[i] = together(t.Context(), c, []*ledgerv1.TransferRequest{w.request})[0]
		}
	}
	return answers
}

// callBatch makes all calls as items of one TransferBatch. A call that cannot be encoded has no result.
func callBatch(t *testing.T, c *client.Client, cases []wrong) []*ledgerv1.TransferBatchResult {
	t.Helper()
	request := new(ledgerv1.TransferBatchRequest)
	results := make([]*ledgerv1.TransferBatchResult, len(cases))
	for i, w := range cases {
		if w.want != "" {
			request.Items = append(request.Items,
				&ledgerv1.TransferBatchItem{Transfer: w.request, IdempotencyKey: fmt.Sprint(t.Name(), i)})
			if w.key != "" {
				request.Items[len(request.Items)-1].IdempotencyKey = w.key
			}
		}
	}
	res, err := c.Ledger.TransferBatch(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	rest := res.GetResults()
	for i, w := range cases {
		if w.want != "" {
			results[i], rest = rest[0], rest[1:]
		}
	}
	return results
}

// sameError compares two errors: all fields of client.Error, and the wire details.
func sameError(t *testing.T, what string, got, want error) {
	t.Helper()
	g, ok := client.AsError(got)
	w, _ := client.AsError(want)
	if !ok || g == nil {
		t.Errorf("%s: %T is not a client.Error", what, got)
		return
	}
	g, w = spelt(g), spelt(w)
	for i, f := range reflect.VisibleFields(reflect.TypeFor[client.Error]()) {
		a, b := reflect.ValueOf(*g).Field(i), reflect.ValueOf(*w).Field(i)
		if f.IsExported() && !reflect.DeepEqual(a.Interface(), b.Interface()) {
			t.Errorf("%s: %s is %#v, alone %#v", what, f.Name, a, b)
		}
	}
	var gw, ww *connect.Error
	if !errors.As(got, &gw) || !errors.As(want, &ww) || connect.IsWireError(gw) != connect.IsWireError(ww) {
		t.Errorf("%s: %v, alone %v", what, gw, ww)
		return
	}
	same := slices.EqualFunc(gw.Details(), ww.Details(), func(a, b *connect.ErrorDetail) bool {
		x, err := a.Value()
		y, _ := b.Value()
		return err == nil && proto.Equal(speltDetail(x), speltDetail(y))
	})
	if !same {
		t.Errorf("%s: details %v, alone %v", what, gw.Details(), ww.Details())
	}
}

var camelCase = regexp.MustCompile(`[a-z]+([A-Z][a-z]*)+`)

// snake converts the names of fields in a text to snake case: errors over JSON have them in camel case.
func snake(text string) string {
	return camelCase.ReplaceAllStringFunc(text, func(word string) string {
		return strings.ToLower(regexp.MustCompile("[A-Z]").ReplaceAllString(word, "_$0"))
	})
}

func spelt(e *client.Error) *client.Error {
	if e == nil {
		return nil
	}
	c := *e
	c.Message, c.Fields = snake(e.Message), slices.Clone(e.Fields)
	for i, f := range c.Fields {
		c.Fields[i] = client.Field{Path: snake(f.Path), Description: snake(f.Description)}
	}
	return &c
}

func speltDetail(m proto.Message) proto.Message {
	if bad, ok := m.(*errdetails.BadRequest); ok {
		for _, v := range bad.GetFieldViolations() {
			v.Field, v.Description = snake(v.GetField()), snake(v.GetDescription())
		}
	}
	return m
}

// A busy server refuses each call with a delay.
func TestBusyIsTheSameAloneGatheredAndInABatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	url := startLedgerOn(t, db)
	opts := []client.Option{client.WithRetry(1, 1, 1), named("now")}
	c := newClient(t, url, opts...)
	fill(t, db, c)
	full := []wrong{{why: "busy", want: client.ReasonBusy, request: transfer("1", "shop", "bob", "1.00")},
		{why: "busy, too", want: client.ReasonBusy, request: transfer("2", "shop", "bob", "1.00")}}
	lone := callAlone(t, c, full)
	gathered := callGathered(t, url, full, opts...)
	batch := &ledgerv1.TransferBatchRequest{}
	for _, w := range full {
		batch.Items = append(batch.Items, &ledgerv1.TransferBatchItem{Transfer: w.request})
	}
	_, whole := c.Ledger.TransferBatch(t.Context(), batch) // one error for the call: no item was admitted
	for i, w := range full {
		if e, ok := client.AsError(lone[i].err); !ok || e.Reason != client.ReasonBusy || e.RetryAfter == 0 {
			t.Fatalf("%+v: has no retry delay", e)
		}
		sameError(t, w.why+", gathered", gathered[i].err, lone[i].err)
		sameError(t, w.why+", in a batch", whole, lone[i].err)
	}
}

// fill gives the server as much work of one tenant as it accepts, on an account that another transaction locks
// until the test ends.
func fill(t *testing.T, db *pgtest.DB, c *client.Client) {
	t.Helper()
	pool := pgtest.Pool(t, db.SuperDSN)
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	if _, err := lock.Exec(t.Context(), "select from ledger_accounts where code = 'alice' for update"); err != nil {
		t.Fatal(err)
	}
	request := new(ledgerv1.TransferBatchRequest)
	for i := range 100 {
		r := transfer(fmt.Sprint("fill-", i), "alice", "bob", "0.01")
		r.Postings = slices.Repeat(r.GetPostings(), 1000)
		request.Items = append(request.Items, &ledgerv1.TransferBatchItem{Transfer: r})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Ledger.TransferBatch(t.Context(), request)
	}()
	t.Cleanup(func() { <-done })
	for waiting := false; !waiting; {
		query := "select exists (select from pg_stat_activity where datname = current_database() " +
			"and wait_event_type = 'Lock')"
		if err := pool.QueryRow(t.Context(), query).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
}
