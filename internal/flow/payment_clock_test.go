package flow_test

import (
	"fmt"
	"math/rand/v2"
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

// TestRefundsFollowTheClockOfTheGateway lets a gateway change its mind about refunds up to three times, also about the
// amount, and tells what it said in any order, more than once, and not all of it, several at once on two engines. At the
// end the service knows what the gateway has given back, and an open flag has what the books do not have.
func TestRefundsFollowTheClockOfTheGateway(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	var plays atomic.Int32
	began := time.Now().Add(-2 * time.Hour)
	rapid.Check(t, func(r *rapid.T) {
		n := plays.Add(1)
		no, transaction := fmt.Sprint("p", n), fmt.Sprint("t", n)
		of := func(s *payment.Said) { s.OutTradeNo, s.TransactionID = no, transaction }
		m.payableOrder(fmt.Sprint("o", n), outside, func(c *flow.CreateOrder) { c.Lines, c.Reserve = nil, false })
		m.create(fmt.Sprint("o", n), no)
		m.says(notice(fmt.Sprint("n", n), amountOf("10", "CNY"), of), "applied")
		var told []payment.Said
		asked, given := map[string]int{}, map[string]int{} // what was asked for, and what the gateway says last
		for i := range rapid.IntRange(1, 3).Draw(r, "refunds") {
			number, amount := fmt.Sprint("r", n, "-", i), i+2
			c := refund(number, fmt.Sprint(amount))
			c.OutTradeNo = no
			m.gets(c, number+" asked")
			asked[number] = amount
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
					told = append(told, notice(id, gave(number, amount, given[number]), of, func(s *payment.Said) {
						s.At = began.Add(time.Duration(turn) * time.Second)
					}))
				}
			}
		}
		rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "order"), 1)).Shuffle(len(told), func(i, j int) { told[i], told[j] = told[j], told[i] })
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
		}
		for number, amount := range asked {
			if rapid.Bool().Draw(r, "query") {
				said := notice(fmt.Sprint("q", number), gave(number, amount, given[number]), of)
				said.Callback = false
				log = append(log, "query: "+m.hear(0, said))
			}
			state := m.text("select state from machine_instances where tenant_id = 1 and machine = 'refund' and key = $1", number)
			booked := amount
			if state == "failed" {
				booked = 0
			}
			want := fmt.Sprint(given[number]*100, " none")
			switch more := given[number] - booked; {
			case more > 0:
				want = fmt.Sprint(given[number]*100, " unknown_refund ", more*100)
			case more < 0:
				want = fmt.Sprint(given[number]*100, " refund_returned ", -more*100)
			}
			got := m.text(`select given || ' ' || coalesce((select string_agg(kind || ' ' || amount, ', ') from payment_flags
				where tenant_id = 1 and about_refund = $1 and resolution is null), 'none') from payment_refunds where tenant_id = 1 and refund_no = $1`, number)
			if got != want {
				r.Errorf("refund %s of %d, of which the gateway gave back %d, and which is %s: %s, want %s", number, amount,
					given[number], state, got, want)
			}
		}
		m.verify()
		if r.Failed() {
			r.Log(strings.Join(log, "\n"))
		}
	})
}

// gave says that a refund of an amount gave back another one, or, if that is 0, that it failed.
func gave(number string, amount, given int) func(*payment.Said) {
	return func(s *payment.Said) {
		ofRefund(number, gateway.Refunded)(s)
		amountOf(fmt.Sprint(given), "CNY")(s)
		if given == 0 {
			ofRefund(number, gateway.RefundFailed)(s)
			amountOf(fmt.Sprint(amount), "CNY")(s)
		}
	}
}

// A notice that does not say how a refund ended moves no time: a failure that comes later is not old.
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
				m.says(notice(fmt.Sprint("m", id), amountOf("4", "CNY"), ofRefund("r1", x.kind), func(s *payment.Said) {
					s.At = time.Now().Add(-time.Hour).Add(time.Duration(x.minute) * time.Minute)
				}), x.want)
			}
			m.is("o paid, p1 succeeded, r1 succeeded; refund_returned 400; gw -6, user:3 6")
			m.verify()
		})
	}
}

// Answers to questions about a refund have one id if they say the same, and count again after other notices.
func TestAnAnswerAboutARefundCountsAgain(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	answer := func(change ...func(*payment.Said)) payment.Said {
		s := notice("answer", append([]func(*payment.Said){amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)}, change...)...)
		s.Callback = false
		return s
	}
	m.hear(0, answer(func(s *payment.Said) { s.Foreign = "merchant m2" }))
	m.hear(0, answer())
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 400 withdrawn; gw -6, user:3 6")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed)), "flagged")
	m.hear(0, answer())
	m.hear(0, answer())
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 400 withdrawn, refund_returned 400 withdrawn; gw -6, user:3 6")
	m.verify()
}
