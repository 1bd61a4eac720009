// Package verifytest fills test databases through the engine, for tests of readers and checks.
package verifytest

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ids"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
	"github.com/ledgerd/ledgerd/internal/work"
)

// Tenants made by New.
const (
	Demo  = int32(1)
	Other = int32(2)
)

// Books is an engine on a test database.
type Books struct {
	t      testing.TB
	engine *flow.Engine
	super  *pgxpool.Pool
}

// New makes the tenants demo and other, with the asset CNY of two decimals, and starts an engine. The engine
// stops at the end of the test, before the database is checked.
func New(t testing.TB, db *pgtest.DB) *Books {
	t.Helper()
	super := pgtest.Pool(t, db.SuperDSN)
	if _, err := super.Exec(t.Context(), "insert into access_tenants (tenant_id, name) "+
		"values (1, 'demo'), (2, 'other')"); err != nil {
		t.Fatal(err)
	}
	pool, err := pg.Open(t.Context(), db.AllDSN, 6)
	if err != nil {
		t.Fatal(err)
	}
	b := &Books{t, flow.NewSendingEngine(pool, "test", nil, nil,
		&notify.Outbox{Master: secret.New(), Instance: "test"}), super}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.engine.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	for _, tenant := range []int32{Demo, Other} {
		b.must(tenant, "setup", &ledger.CreateAssetsCommand{Caller: caller(tenant, "setup"),
			Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}})
	}
	return b
}

// Fill makes at least one row of everything. For demo: a funded wallet, a transfer of two postings, holds that
// are open, captured and released, a reversed transfer, a used and a refused request key, a page id and a
// business key, issued and spent tokens, works, inbox messages, a machine with an instance that has moved, an item with
// reservations, orders, payments, coupons, a sale, a lock, an id, a template, a verification code, notifications, a
// webhook endpoint, and requests for approval. For other: a little.
func Fill(t testing.TB, db *pgtest.DB) *Books {
	t.Helper()
	b := New(t, db)
	b.Accounts(Demo, "req-accounts", "world", "user:1:wallet", "user:2:wallet", "fees")
	b.Transfer(Demo, "fund-1", "world", "user:1:wallet", "100")
	b.must(Demo, "req-pay-1", &ledger.TransferCommand{Caller: caller(Demo, "req-pay-1"),
		TransferParams: ledger.TransferParams{
			BizNo: "pay-1", Type: "purchase", EffectiveAt: time.Now().Add(-time.Hour), Postings: []ledger.Posting{
				{From: "user:1:wallet", To: "user:2:wallet", Asset: "CNY", Amount: Decimal("30.5")},
				{From: "user:1:wallet", To: "fees", Asset: "CNY", Amount: Decimal("0.05")}}}})
	b.Hold(Demo, "hold-1", "user:1:wallet", "user:2:wallet", "20")
	b.Capture(Demo, "capture-1", "hold-1", "5.01")
	b.Hold(Demo, "hold-2", "user:1:wallet", "user:2:wallet", "7")
	b.Capture(Demo, "capture-2", "hold-2", "7")
	b.Hold(Demo, "hold-3", "user:2:wallet", "", "1")
	b.must(Demo, "req-release", ledger.ReleaseOf(caller(Demo, "req-release"), 0, "hold-3"))
	b.Transfer(Demo, "pay-2", "user:2:wallet", "user:1:wallet", "3")
	b.must(Demo, "req-undo", &ledger.ReverseCommand{Caller: caller(Demo, "req-undo"),
		ReverseParams: ledger.ReverseParams{TransferBizNo: "pay-2", BizNo: "undo-2"}})
	b.keyed(Demo, "key-1", b.transfer(Demo, "keyed-1", "user:1:wallet", "fees", "1"), nil)
	b.keyed(Demo, "key-2", b.transfer(Demo, "too-much", "user:1:wallet", "fees", "1000000"), ledger.InsufficientFunds)

	b.claim(Demo, claim.Params{Scope: "page", Key: "page-1", Owner: "user:1", Life: time.Hour})
	b.claim(Demo, claim.SamePurchase.Params("user:1", "product-7"))
	b.tokens()
	b.works()
	b.messages()
	b.machine()
	b.stock()
	b.ask("req-lock", flow.Lock(&lock.AcquireCommand{Caller: caller(Demo, "req-lock"),
		AcquireParams: lock.AcquireParams{Name: "reports", Holder: "worker-1", Lease: time.Hour}}))
	b.other(db)
	b.codes()
	b.notices()
	b.ask("req-endpoint", flow.Webhook(&webhook.CreateCommand{Caller: caller(Demo, "req-endpoint"), Name: "shop",
		URL: "https://shop.example.com/hooks"}))

	b.Accounts(Other, "req-accounts", "world", "user:1:wallet")
	b.Transfer(Other, "fund-1", "world", "user:1:wallet", "1")
	b.orders()
	b.payments()
	b.approvals()
	return b
}

// Decimal parses an amount.
func Decimal(s string) amount.Decimal {
	d, err := amount.ParseDecimal(s)
	if err != nil {
		panic(err)
	}
	return d
}

func caller(tenant int32, request string) commit.Caller {
	return commit.Caller{Tenant: tenant, Principal: "tester", RequestID: request}
}

// Accounts makes accounts in CNY, of which the first is unbounded.
func (b *Books) Accounts(tenant int32, request string, codes ...string) {
	b.t.Helper()
	zero := Decimal("0")
	c := &ledger.CreateAccountsCommand{Caller: caller(tenant, request)}
	for i, code := range codes {
		a := ledger.NewAccount{Code: code, Asset: "CNY", Kind: "liability", Min: &zero}
		if i == 0 {
			a.Kind, a.Min = "equity", nil
		}
		c.Accounts = append(c.Accounts, a)
	}
	b.must(tenant, request, c)
}

func (b *Books) transfer(tenant int32, bizNo, from, to, amount string) *ledger.TransferCommand {
	return &ledger.TransferCommand{Caller: caller(tenant, "req-"+bizNo),
		TransferParams: ledger.TransferParams{BizNo: bizNo,
			Type: "transfer", Postings: []ledger.Posting{{From: from, To: to, Asset: "CNY", Amount: Decimal(amount)}}}}
}

// Transfer moves an amount, with request id req-<biz_no>.
func (b *Books) Transfer(tenant int32, bizNo, from, to, amount string) {
	b.t.Helper()
	b.must(tenant, "req-"+bizNo, b.transfer(tenant, bizNo, from, to, amount))
}

// Hold holds an amount for an hour.
func (b *Books) Hold(tenant int32, bizNo, from, to, amount string) {
	b.t.Helper()
	b.must(tenant, "req-"+bizNo, &ledger.HoldCommand{Caller: caller(tenant, "req-"+bizNo),
		HoldParams: ledger.HoldParams{
			BizNo: bizNo, From: from, To: to, Asset: "CNY", Amount: Decimal(amount), Life: time.Hour}})
}

// Capture pays out of a hold to its default destination.
func (b *Books) Capture(tenant int32, bizNo, hold, amount string) {
	b.t.Helper()
	p := ledger.CaptureOf(0, hold)
	n := Decimal(amount)
	p.BizNo, p.Amount, p.Type = bizNo, &n, "capture"
	b.must(tenant, "req-"+bizNo, &ledger.CaptureCommand{Caller: caller(tenant, "req-"+bizNo), CaptureParams: p})
}

// must runs a command that must succeed.
func (b *Books) must(tenant int32, request string, c commit.Command[*ledger.Tx]) {
	b.t.Helper()
	b.do(flow.Submission{Tenant: tenant, RequestID: request, Command: flow.Ledger(c)}, nil)
}

func (b *Books) keyed(tenant int32, key string, c *ledger.TransferCommand, want *fault.Reason) {
	b.t.Helper()
	b.do(flow.Submission{Tenant: tenant, RequestID: c.RequestID, Command: flow.Ledger(c),
		Key: &commit.Key{Principal: "tester", Operation: "ledger.transfer", Key: key,
			Fingerprint: make([]byte, commit.FingerprintSize), Life: 24 * time.Hour},
		Encode: func(any) ([]byte, error) { return []byte(key), nil }}, want)
}

func (b *Books) claim(tenant int32, p claim.Params) {
	b.t.Helper()
	b.do(flow.Submission{Tenant: tenant, RequestID: "req-claim",
		Command: flow.Claim(&claim.Command{Caller: caller(tenant, "req-claim"), Params: p})}, nil)
}

// ask runs a command of demo that must succeed and returns its answer.
func (b *Books) ask(request string, c flow.Command) any {
	b.t.Helper()
	return b.do(flow.Submission{Tenant: Demo, RequestID: request, Command: c}, nil)
}

// tokens issues two submit tokens and spends one.
func (b *Books) tokens() {
	tokens := []string{token.New(), token.New()}
	b.ask("req-form", flow.Token(&token.IssueCommand{Caller: caller(Demo, "req-form"), Tokens: tokens,
		Subject: "user:1", Purpose: "order", Life: time.Hour}))
	b.ask("req-submit", flow.Token(&token.SpendCommand{Result: "order-7",
		Spend: token.Spend{Caller: caller(Demo, "req-submit"), Token: tokens[0],
			Subject: "user:1", Purpose: "order", Operation: "idempotency.spend_token"}}))
}

// works begins three pieces of work: one completes, one is abandoned and begun again, the third is parked.
func (b *Books) works() {
	begin := func(request, key string) work.Held {
		begun := b.ask(request, flow.Work(&work.BeginCommand{Caller: caller(Demo, request),
			BeginParams: work.BeginParams{Scope: "shop/orders", Key: key,
				Fingerprint: []byte(key), Lease: time.Hour, Life: 24 * time.Hour}}))
		held := work.Held{Scope: "shop/orders", Key: key}
		if begun, ok := begun.(work.Begun); ok {
			held.Fence = begun.Fence
		}
		return held
	}
	end := func(request string, h work.Held, state work.State, status int32) {
		answer, err := work.NewAnswer(status, nil, []byte("it is so"))
		if err != nil {
			b.t.Error(err)
			return
		}
		b.ask(request, flow.Work(&work.CompleteCommand{Caller: caller(Demo, request), Held: h, State: state,
			Answer: answer}))
	}
	end("req-work-end", begin("req-work", "click-1"), work.Done, 200)
	b.ask("req-work-back", flow.Work(&work.AbandonCommand{Caller: caller(Demo, "req-work-back"),
		Held: begin("req-work-first", "click-2")}))
	begin("req-work-again", "click-2")
	end("req-work-lost", begin("req-work-3", "click-3"), work.Parked, 504)
}

// messages receives one message and begins another, which dies.
func (b *Books) messages() {
	key := func(id string) inbox.Key { return inbox.Key{Tenant: Demo, Group: "points", ID: id} }
	content := []byte(`{"order": 7}`)
	hash := sha256.Sum256(content)
	delivery := inbox.Delivery{Topic: "orders", Content: content, Hash: hash[:], ContentLife: time.Hour, MaxAttempts: 3,
		Backoff: time.Second, MaxBackoff: time.Hour}
	b.ask("req-message", flow.Inbox(&inbox.ReceiveCommand{Caller: caller(Demo, "req-message"), Key: key("orders-1"),
		Delivery: delivery}))
	begun, ok := b.ask("req-message-2", flow.Inbox(&inbox.BeginCommand{Caller: caller(Demo, "req-message-2"),
		Key:      key("orders-2"),
		Delivery: delivery, Holder: "worker-1", Lease: time.Hour})).(inbox.Begun)
	if ok {
		b.ask("req-message-dies", flow.Inbox(&inbox.FailCommand{Caller: caller(Demo, "req-message-dies"),
			Key:   key("orders-2"),
			Fence: begun.Message.Fence, FailureText: "no such order", Permanent: true}))
	}
}

// machine defines a machine of tickets, opens ticket 7 and closes it.
func (b *Books) machine() {
	b.ask("req-machine", flow.Machine(machine.NewDefine(caller(Demo, "req-machine"), "ticket", &machine.Definition{
		States: []machine.State{{Name: "open", Initial: true,
			Timer: &machine.Timer{AfterMs: 3_600_000, To: "closed", Reason: "no answer"}}, {Name: "closed"}},
		Moves: []machine.Allowed{
			{From: []string{"open"}, To: "closed", By: []machine.Actor{machine.ByCaller, machine.ByTimer}},
			{From: []string{"closed"}, Back: true}}})))
	b.ask("req-ticket", flow.Machine(&machine.CreateCommand{Caller: caller(Demo, "req-ticket"),
		CreateParams: machine.CreateParams{Machine: "ticket", Key: "7", Owner: "user:1"}}))
	b.ask("req-close", flow.Machine(&machine.MoveCommand{Caller: caller(Demo, "req-close"),
		MoveParams: machine.MoveParams{Machine: "ticket", Key: "7", To: "closed", Cause: "answer-1",
			Reason: "answered"}}))
}

// other makes rows outside the engine: saved outcomes of keys, and an id.
func (b *Books) other(db *pgtest.DB) {
	if err := b.engine.SaveCounts(b.t.Context()); err != nil {
		b.t.Error(err)
	}
	g := ids.New(ids.Options{Pool: pgtest.Pool(b.t, db.AllDSN), Holder: "test"})
	if _, err := g.Next(b.t.Context(), 1); err != nil {
		b.t.Error(err)
	}
}

func (b *Books) do(w flow.Submission, want *fault.Reason) any {
	b.t.Helper()
	w.Rows, w.Bytes = 8, 800
	out, err := b.engine.Do(context.Background(), w)
	if want != nil && !fault.Is(err, want) {
		b.t.Errorf("want %s, got %v", want.Name, err)
	}
	if want == nil && err != nil {
		b.t.Errorf("%s: %v", w.RequestID, err)
	}
	return out.Answer
}
