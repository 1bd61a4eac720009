package flow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// TestRefundsFollowTheClockOfTheGateway lets a gateway change the outcome and the amount of refunds and console refunds
// up to three times. It delivers the notices in any order, repeats or drops some, and sends several at once to two
// engines, while a person writes flags off. At the end the service has the amount that the gateway gave back, and one
// open flag has the difference to the ledger and the write-offs.
func TestRefundsFollowTheClockOfTheGateway(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	var plays atomic.Int32
	began := time.Now().Add(-2 * time.Hour)
	rapid.Check(t, func(r *rapid.T) {
		n := plays.Add(1)
		no, transaction := fmt.Sprint("p", n), fmt.Sprint("t", n)
		of := func(s *payment.Received) { s.OutTradeNo, s.TransactionID = no, transaction }
		m.payableOrder(fmt.Sprint("o", n), outside, func(c *flow.CreateOrder) { c.Lines, c.Reserve = nil, false })
		m.create(fmt.Sprint("o", n), no)
		m.says(notice(fmt.Sprint("n", n), amountOf("10", "CNY"), of), "applied")
		var told []payment.Received
		asked, given := map[string]int{}, map[string]int{} // amounts requested, and given back by the latest notice
		for i := range rapid.IntRange(1, 3).Draw(r, "refunds") {
			number, amount := fmt.Sprint("r", n, "-", i), i+2
			if asked[number] = amount; rapid.Bool().Draw(r, "in the console") {
				asked[number] = 0
			} else {
				c := refund(number, fmt.Sprint(amount))
				c.OutTradeNo = no
				m.gets(c, number+" requested")
			}
			turns := rapid.IntRange(0, 3).Draw(r, "turns")
			for turn := range turns + 1 {
				given[number] = rapid.SampledFrom([]int{amount, amount, 0, 0, amount - 1, amount + 1}).Draw(r, "given")
				copies := rapid.IntRange(0, 2).Draw(r, "copies")
				if turn == turns {
					copies = max(copies, 1)
				}
				for same := range copies {
					id := fmt.Sprint("m", number, "-", turn)
					if rapid.Bool().Draw(r, "another id") {
						id += fmt.Sprint("-", same)
					}
					told = append(told, notice(id, gave(number, amount, given[number]), of, func(s *payment.Received) {
						s.At = began.Add(time.Duration(turn) * time.Second)
					}))
				}
			}
		}
		rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "order"), 1)).Shuffle(len(told),
			func(i, j int) { told[i], told[j] = told[j], told[i] })
		var log []string
		for len(told) > 0 {
			some := told[:rapid.IntRange(1, min(len(told), 3)).Draw(r, "at once")]
			told = told[len(some):]
			ends := make([]string, len(some))
			var wait sync.WaitGroup
			for i, s := range some {
				wait.Go(func() { ends[i] = m.hear(i%2, s) })
			}
			wait.Wait()
			for i, s := range some {
				log = append(log, fmt.Sprintf("%s at %s: %s", s.ID, s.At.Sub(began), ends[i]))
				if strings.ToUpper(ends[i]) == ends[i] {
					r.Errorf("notice %s: %s", s.ID, ends[i])
				}
			}
			open := m.text("select coalesce(min(flag_id), 0)::text from payment_flags where out_trade_no = $1 "+
				"and resolution is null", no)
			if id, err := strconv.ParseInt(open, 10, 64); err != nil {
				t.Fatal(err)
			} else if id != 0 && rapid.IntRange(0, 3).Draw(r, "resolve") == 0 {
				log = append(log, "write off: "+m.pay(0,
					&flow.ResolveFlag{Caller: caller, ID: id, Resolution: payment.WriteOff, Target: "loss"}))
			}
		}
		for number, amount := range asked {
			if rapid.Bool().Draw(r, "query") {
				said := notice(fmt.Sprint("q", number), gave(number, 4, given[number]), of)
				said.Callback = false
				log = append(log, "query: "+m.hear(0, said))
			}
			booked := amount*100 - m.number(`select count(*) * $2 from machine_instances
				where tenant_id = 1 and machine = 'refund' and key = $1 and state = 'failed'`, number, amount*100)
			resolved := m.number(`select coalesce(sum(case kind when 'unknown_refund' then amount else -amount end), 0)
				from payment_flags f
				where resolution = 'write_off' and `+aboutRefund, number)
			want := fmt.Sprint(given[number]*100, " none")
			switch more := given[number]*100 - booked - resolved; {
			case more > 0:
				want = fmt.Sprint(given[number]*100, " unknown_refund ", more)
			case more < 0:
				want = fmt.Sprint(given[number]*100, " refund_returned ", -more)
			}
			got := m.text(`select coalesce((select given::text from payment_refunds where tenant_id = 1
				and refund_no = $1),
				(select (case when failed then 0 else amount end)::text from payment_console_refunds
				where refund_no = $1)) || ' ' || coalesce((
				select string_agg(kind || ' ' || amount, ', ') from payment_flags f where resolution is null
				and `+aboutRefund+`), 'none')`, number)
			if got != want {
				r.Errorf("refund %s of %d, of which the gateway gave back %d: booked %d, written off %d: %s, want %s",
					number, amount,
					given[number], booked, resolved, got, want)
			}
		}
		m.verify()
		if r.Failed() {
			r.Log(strings.Join(log, "\n"))
		}
	})
}

// aboutRefund selects flags of a refund, or of a console refund.
const aboutRefund = `(about_refund = $1 or about_console = (select console_id from payment_console_refunds ` +
	`where refund_no = $1))`

// number runs a query that returns one number.
func (m *till) number(query string, args ...any) (n int) {
	m.Helper()
	if err := m.super.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		m.Fatal(err)
	}
	return n
}

// gave makes a notice report that a refund of an amount gave back another one, or, if that is 0, that it failed.
func gave(number string, amount, given int) func(*payment.Received) {
	return func(s *payment.Received) {
		ofRefund(number, gateway.Refunded)(s)
		amountOf(fmt.Sprint(given), "CNY")(s)
		if given == 0 {
			ofRefund(number, gateway.RefundFailed)(s)
			amountOf(fmt.Sprint(amount), "CNY")(s)
		}
	}
}

// A notice that does not say how a refund ended does not advance the refund's notice time: a failure with an earlier
// time still counts.
func TestAPendingNoticeDoesNotMakeAFailureOld(t *testing.T) {
	t.Parallel()
	for _, vague := range []gateway.Kind{gateway.RefundPending, gateway.RefundAbnormal} {
		t.Run(string(vague), func(t *testing.T) {
			t.Parallel()
			m := refunding(t, "4")
			for id, x := range []struct {
				minute int
				kind   gateway.Kind
				want   string
			}{{10, gateway.Refunded, "applied"}, {16, vague, "known"}, {14, gateway.RefundFailed, "flagged"}} {
				m.says(notice(fmt.Sprint("m", id), amountOf("4", "CNY"), ofRefund("r1", x.kind),
					func(s *payment.Received) {
						s.At = time.Now().Add(-time.Hour).Add(time.Duration(x.minute) * time.Minute)
					}), x.want)
			}
			m.is("o paid, p1 succeeded, r1 succeeded; refund_returned 400; gw -6, user:3 6")
			m.verify()
		})
	}
}

// Answers to queries about a refund have the same id if their content is the same. Such an answer counts again after
// other notices.
func TestAnAnswerAboutARefundCountsAgain(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	answer := func(change ...func(*payment.Received)) payment.Received {
		s := notice("answer", append([]func(*payment.Received){amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)},
			change...)...)
		s.Callback = false
		return s
	}
	m.hear(0, answer(func(s *payment.Received) { s.Foreign = "merchant m2" }))
	m.hear(0, answer())
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 400 withdrawn; gw -6, user:3 6")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed)), "flagged")
	m.hear(0, answer())
	m.hear(0, answer())
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 400 withdrawn, refund_returned 400 withdrawn; " +
		"gw -6, user:3 6")
	m.verify()
}
