package flow_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/payment/dispatch"
)

// payPlay is a random play of a tenant with two banks as gateways: money goes from gw-g and gw-h to shop, or to sus.
type payPlay struct {
	*rapid.T
	market     *market
	caller     commit.Caller
	banks      map[string]*bank
	dispatcher *dispatch.Dispatcher
	waiting    []flow.Command
	told       map[string]payment.Received // the first notice of each transaction, by bank and transaction
	notices    int
	minutes    *atomic.Int32 // by which the clock of the database is ahead
	log        []string
}

var (
	drawnOrders    = rapid.SampledFrom([]string{"o", "twice"})
	drawnNumbers   = rapid.SampledFrom([]string{"p1", "p2", "p3"})
	drawnBanks     = rapid.SampledFrom([]string{"g", "g", "h"})
	drawnRefunds   = rapid.SampledFrom([]string{"r", "r2", "r33", "r444"})
	drawnAmounts   = rapid.SampledFrom([]string{"10", "10", "10", "10", "9", "0", "10.001"})
	drawnOddities  = rapid.SampledFrom([]string{"", "", "", "", "currency", "merchant"})
	drawnAccounts  = rapid.SampledFrom([]string{"loss", "shop", "sus"})
	drawnDecisions = rapid.SampledFrom([]payment.Resolution{payment.Accept, payment.GiveBack, payment.WriteOff})
)

// begin makes the accounts and the orders, of 10 each: "o" of the shipped machine, and "twice" of one that has two
// states that confirm.
func (p *payPlay) begin() {
	p.now(&flow.PutGateway{Caller: p.caller, Name: "g",
		Gateway: payment.Gateway{Clearing: "gw-g", Suspense: "sus", Payee: "shop"}})
	p.now(&flow.PutGateway{Caller: p.caller, Name: "h",
		Gateway: payment.Gateway{Clearing: "gw-h", Suspense: "sus", Payee: "shop"}})
	zero := dec("0")
	p.now(flow.Ledger(&ledger.CreateAssetsCommand{Caller: p.caller,
		Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}))
	p.now(flow.Ledger(&ledger.CreateAccountsCommand{Caller: p.caller, Accounts: []ledger.NewAccount{
		{Code: "gw-g", Asset: "CNY", Kind: "asset"}, {Code: "gw-h", Asset: "CNY", Kind: "asset"},
		{Code: "loss", Asset: "CNY", Kind: "expense"},
		{Code: "shop", Asset: "CNY", Kind: "liability", Min: &zero},
		{Code: "sus", Asset: "CNY", Kind: "liability", Min: &zero}}}))
	d := &machine.Definition{States: []machine.State{{Name: "pending", Initial: true},
		{Name: "paid", Parts: machine.ConfirmParts},
		{Name: "done", Parts: machine.ConfirmParts}, {Name: "cancelled", Parts: machine.CancelParts}},
		Moves: []machine.Allowed{{From: []string{"pending"}, To: "paid"}, {From: []string{"paid"}, To: "done"},
			{From: []string{"pending", "paid"}, To: "cancelled"}}}
	p.now(flow.Machine(machine.NewDefine(p.caller, "twice", d)))
	within := rapid.SampledFrom([]time.Duration{0, 60 * 24 * time.Hour}).Draw(p.T, "pay within")
	for _, x := range []struct {
		no, machine, number string
		within              time.Duration
	}{{"o", machine.OrderMachine, "p1", within}, {"twice", "twice", "p2", 0}} {
		p.now(&flow.CreateOrder{Caller: p.caller, OrderNo: x.no,
			Facts: order.Facts{Machine: x.machine, Subject: "ann", Asset: "CNY",
				Amount: dec("10"), PayWithin: x.within}})
		if rapid.IntRange(0, 3).Draw(p.T, "created") > 0 {
			p.now(&flow.CreatePayment{Caller: p.caller, OrderNo: x.no, Gateway: "g", OutTradeNo: x.number})
		}
	}
}

// now runs a command that must succeed.
func (p *payPlay) now(c flow.Command) (end string) {
	p.Helper()
	for range 2 { // the first PutGateway comes before its accounts: it is retried
		out, err := p.market.engines[0].Do(context.Background(),
			flow.Submission{Tenant: p.caller.Tenant, RequestID: "r", Rows: 12, Bytes: 400, Command: c})
		if err == nil {
			return describePay(out, nil)
		}
		end = describePay(out, err)
	}
	p.Fatalf("%T: %s", c, end)
	return end
}

// text runs a query of one text, with the tenant as $1.
func (p *payPlay) text(sql string, args ...any) string {
	p.Helper()
	return p.market.text(sql, append([]any{p.caller.Tenant}, args...)...)
}

// pick draws one of the values that a query returns or, sometimes and if it returns none, of another generator.
func (p *payPlay) pick(r *rapid.T, what, sql string, other *rapid.Generator[string]) string {
	p.Helper()
	some := strings.Fields(p.text("select coalesce(string_agg(x::text, ' ' order by x), '') from (" + sql + ") y (x)"))
	if len(some) > 0 && rapid.IntRange(0, 4).Draw(r, "known") > 0 {
		other = rapid.SampledFrom(some)
	}
	return other.Draw(r, what)
}

// create starts a payment.
func (p *payPlay) create(r *rapid.T) {
	p.waiting = append(p.waiting, &flow.CreatePayment{Caller: p.caller, OrderNo: drawnOrders.Draw(r, "order"),
		Gateway: drawnBanks.Draw(r, "bank"),
		PayType: rapid.SampledFrom([]string{"", "app"}).Draw(r, "type"), OutTradeNo: drawnNumbers.Draw(r, "number")})
}

// hear queues a notice of a bank.
func (p *payPlay) hear(bank string, s payment.Received) {
	if s.ID == "" {
		p.notices++
		s.ID = fmt.Sprint("n", p.notices)
	}
	s.Callback, s.Body = true, []byte("{}")
	p.waiting = append(p.waiting, &flow.ApplyNotice{Caller: p.caller,
		NoticeParams: flow.NoticeParams{Gateway: bank, Received: s}})
}

// paid queues the notice of a transaction. A repeat has the same content, but may have another id or payment number.
func (p *payPlay) paid(r *rapid.T) {
	name, transaction := drawnBanks.Draw(r, "bank"),
		rapid.SampledFrom([]string{"t1", "t2", "t3", "t4"}).Draw(r, "transaction")
	s, again := p.told[name+"/"+transaction]
	if !again {
		s = payment.Received{Notice: gateway.Notice{Kind: gateway.Paid, OutTradeNo: drawnNumbers.Draw(r, "number"),
			TransactionID: transaction,
			Amount:        dec(drawnAmounts.Draw(r, "amount")), Currency: "CNY"}, Asset: "CNY"}
		switch drawnOddities.Draw(r, "odd") {
		case "currency":
			s.Currency, s.Asset = "XAU", ""
		case "merchant":
			s.Foreign = "mode test"
		}
		p.notices++
		s.ID = fmt.Sprint("n", p.notices)
		p.told[name+"/"+transaction] = s
	} else {
		switch rapid.IntRange(0, 3).Draw(r, "again") {
		case 0, 1:
			s.ID = ""
		case 2:
			s.ID, s.OutTradeNo = "", drawnNumbers.Draw(r, "number")
		}
	}
	b := p.banks[name]
	b.with(func() { b.paid[s.OutTradeNo] = append(b.paid[s.OutTradeNo], s) })
	p.hear(name, s)
}

// say queues the notice of an unpaid payment.
func (p *payPlay) say(r *rapid.T) {
	name, no := drawnBanks.Draw(r, "bank"), drawnNumbers.Draw(r, "number")
	kind := rapid.SampledFrom([]gateway.Kind{gateway.Pending, gateway.Declined, gateway.Closed}).Draw(r, "kind")
	b := p.banks[name]
	b.with(func() {
		b.open[no] = b.open[no] || kind != gateway.Closed
		b.closed[no] = b.closed[no] || kind == gateway.Closed
	})
	n := gateway.Notice{Kind: kind, OutTradeNo: no}
	if rapid.Bool().Draw(r, "repeated") {
		n.ID = string(kind) + "/" + no
	}
	p.hear(name, payment.Received{Notice: n})
}

// back queues the notice of a refund, or of a console refund.
func (p *payPlay) back(r *rapid.T) {
	no := p.pick(r, "refund", "select refund_no from payment_refunds where tenant_id = $1", drawnRefunds)
	row := strings.Split(p.text(`select coalesce((select concat_ws('|', gateway, out_trade_no, transaction_id, currency,
		case scale when 2 then trim_scale(amount / 100) when 3 then trim_scale(amount / 1000) else amount end)
		from payment_refunds where tenant_id = $1 and refund_no = $2), '')`, no), "|")
	for _, c := range p.waiting {
		if s, ok := c.(*flow.ApplyNotice); ok && s.RefundNo == no {
			p.commit(true) // the bank's latest notice is applied last
			break
		}
	}
	kinds := []gateway.Kind{gateway.Refunded, gateway.RefundFailed, gateway.RefundPending, gateway.RefundAbnormal}
	if len(row) < 5 {
		p.hear(drawnBanks.Draw(r, "bank"), payment.Received{Notice: gateway.Notice{OutTradeNo: drawnNumbers.Draw(r,
			"number"),
			Kind: rapid.SampledFrom([]gateway.Kind{gateway.Refunded, gateway.Refunded,
				gateway.RefundFailed}).Draw(r, "end"),
			TransactionID:   rapid.SampledFrom([]string{"", "t1", "t2"}).Draw(r, "transaction"),
			RefundNo:        rapid.SampledFrom([]string{"", "hand", "hand2"}).Draw(r, "by hand"),
			GatewayRefundID: rapid.SampledFrom([]string{"", "re_1", "re_2"}).Draw(r, "id"),
			Amount:          dec(rapid.SampledFrom([]string{"2", "2", "3", "0"}).Draw(r, "given")), Currency: "CNY"},
			Asset: "CNY"})
		return
	}
	n := gateway.Notice{Kind: rapid.SampledFrom(kinds).Draw(r, "kind"), OutTradeNo: row[1], TransactionID: row[2],
		RefundNo: no,
		Currency: row[3], Amount: dec(row[4])}
	b := p.banks[row[0]]
	b.with(func() {
		if last := b.refunds[no]; n.Kind != gateway.Refunded && n.Kind != gateway.RefundFailed && last.Kind != "" {
			n = last // a decided refund is not pending again
		} else if rapid.IntRange(0, 5).Draw(r, "odd") == 0 {
			n.Amount = dec("1")
		}
		b.refunds[no] = n
	})
	n.ID = ""
	p.hear(row[0], payment.Received{Notice: n, Asset: map[string]string{"CNY": "CNY"}[n.Currency]})
}

// refund requests a refund of 4, or of all that remains.
func (p *payPlay) refund(r *rapid.T) {
	c := &flow.RefundPayment{Caller: p.caller, RefundKey: payment.RefundKey{RefundNo: drawnRefunds.Draw(r, "refund")},
		OutTradeNo: p.pick(r, "number",
			"select key from machine_instances where tenant_id = $1 and machine = 'payment' and state = 'succeeded'",
			drawnNumbers)}
	if four := dec("4"); rapid.Bool().Draw(r, "part") {
		c.Amount = &four
	}
	p.waiting = append(p.waiting, c)
}

// resolve resolves a flag.
func (p *payPlay) resolve(r *rapid.T) {
	c := &flow.ResolveFlag{Caller: p.caller, Resolution: drawnDecisions.Draw(r, "resolution")}
	fmt.Sscan(p.pick(r, "flag", "select flag_id from payment_flags where tenant_id = $1", rapid.Just("1")), &c.ID)
	switch c.Resolution {
	case payment.GiveBack:
		c.RefundNo = drawnRefunds.Draw(r, "refund")
	case payment.WriteOff:
		c.Target = drawnAccounts.Draw(r, "account")
	}
	p.waiting = append(p.waiting, c)
}

// end cancels an order, or moves it on.
func (p *payPlay) end(r *rapid.T) {
	c := &flow.MoveOrder{Caller: p.caller, OrderNo: drawnOrders.Draw(r, "order"), Cancel: true,
		Params: machine.MoveParams{Cause: flow.CauseCancel}}
	switch rapid.IntRange(0, 3).Draw(r, "end") {
	case 0, 1:
		return
	case 2:
		c.Cancel, c.Params = false, machine.MoveParams{To: "done", Cause: "x"} // only possible for "twice"
	}
	p.waiting = append(p.waiting, c)
}

// flag queues FlagUnknown for a payment that is due for it, as the scheduler does.
func (p *payPlay) flag(r *rapid.T) {
	no := drawnNumbers.Draw(r, "number")
	if p.text("select count(*)::text from payment_calls where tenant_id = $1 and number = $2 and call = 'flag' "+
		"and next_call_at <= now()", no) == "1" {
		p.waiting = append(p.waiting, &flow.FlagUnknown{Caller: p.caller,
			Key: payment.Key{Tenant: p.caller.Tenant, OutTradeNo: no}})
	}
}

// commit runs the waiting commands: in one batch, or all at once on two engines.
func (p *payPlay) commit(together bool) {
	ctx := context.Background()
	submissions := make([]flow.Submission, len(p.waiting))
	for i, c := range p.waiting {
		submissions[i] = flow.Submission{Tenant: p.caller.Tenant, RequestID: "r", Rows: 12, Bytes: 400, Command: c}
	}
	ends := make([]string, len(submissions))
	if together {
		for i, r := range p.market.engines[0].DoAll(ctx, submissions) {
			ends[i] = describePay(r.Outcome, r.Err)
		}
	} else {
		var wait sync.WaitGroup
		for i := range submissions {
			wait.Go(func() { ends[i] = describePay(p.market.engines[i%2].Do(ctx, submissions[i])) })
		}
		wait.Wait()
	}
	for i, c := range p.waiting {
		p.log = append(p.log, fmt.Sprintf("%T: %s", c, ends[i]))
		// refused: the money goes to suspense
		if s, ok := c.(*flow.ApplyNotice); ok && strings.ToUpper(ends[i]) == ends[i] {
			k := payment.GatewayKey{Tenant: p.caller.Tenant, Gateway: s.Gateway}
			end := resultText(flow.CommitNotice(ctx, p.market.engines[i%2], k, s.Received, nil, "r"))
			if strings.ToUpper(end) == end {
				p.Fatalf("notice %+v: %s", s.Received, end)
			}
		}
	}
	p.waiting = nil
}

// wait lets time pass.
func (p *payPlay) wait(minutes int) {
	p.market.clock.Set(p.market.TB, time.Duration(p.minutes.Add(int32(minutes)))*time.Minute)
}

// TestPaymentsComeToRest runs random commands of callers, banks, persons and the scheduler, several in a batch or at
// the same time on two engines, and lets time pass. Then the banks decide everything, and the ledger must agree with
// them.
func TestPaymentsComeToRest(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	var plays, minutes atomic.Int32
	rapid.Check(t, func(r *rapid.T) {
		p := &payPlay{T: r, market: m, caller: caller, minutes: &minutes, told: map[string]payment.Received{},
			banks: map[string]*bank{"g": newBank(), "h": newBank()}}
		p.caller.Tenant = 100 + plays.Add(1)
		p.dispatcher = m.dispatcher(p.caller.Tenant, p.banks)
		p.begin()
		r.Repeat(map[string]func(*rapid.T){
			"create": p.create, "create too": p.create, "paid": p.paid, "paid too": p.paid, "paid three": p.paid,
			"say": p.say, "back": p.back,
			"back too": p.back, "refund": p.refund, "refund too": p.refund, "resolve": p.resolve,
			"resolve too": p.resolve, "end": p.end, "flag": p.flag,
			"commit":  func(r *rapid.T) { p.commit(rapid.Bool().Draw(r, "together")) },
			"commits": func(*rapid.T) { p.commit(true) },
			"call": func(r *rapid.T) {
				p.commit(true)
				p.calls(rapid.IntRange(0, 3).Draw(r, "call"))
			},
			"wait": func(r *rapid.T) {
				p.commit(true)
				p.wait(rapid.SampledFrom([]int{1, 1, 1, 1, 31, 25 * 60}).Draw(r, "minutes"))
			},
			"put": func(r *rapid.T) {
				name := drawnBanks.Draw(r, "bank")
				p.waiting = append(p.waiting, &flow.PutGateway{Caller: p.caller, Name: name,
					Gateway: payment.Gateway{Clearing: "gw-" + name,
						Suspense: rapid.SampledFrom([]string{"sus", "", "missing"}).Draw(r, "suspense"),
						Payee:    "shop"}})
			},
		})
		p.commit(true)
		p.rest()
		p.compare()
	})
}
