package ledger

import (
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// differs runs a command whose biz_no is taken and compares the fields reported as different.
func (p *Paper) differs(c commit.Command[*Tx], want string) {
	p.t.Helper()
	f := p.refused(BizNoExistsDifferent, c)
	if f.Metadata["differs"] != want {
		p.t.Errorf("%T differs in %q, want %q", c, f.Metadata["differs"], want)
	}
	if len(f.Fields) == 0 || f.Metadata["first_id"] == "" {
		p.t.Errorf("the fault names fields %v, state %v", f.Fields, f.Metadata)
	}
}

func (c *TransferCommand) with(change ...func(*TransferParams)) *TransferCommand {
	for _, f := range change {
		f(&c.TransferParams)
	}
	return c
}

func typed(s string) func(*TransferParams) { return func(p *TransferParams) { p.Type = s } }
func noted(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func TestRepeatedTransferAnswersTheFirstUnderEveryForm(t *testing.T) {
	p := newTown(t)
	yesterday := noon.Add(-24 * time.Hour)
	tests := map[string]func() *TransferCommand{
		"exact": func() *TransferCommand { return move("exact", post("ann", "bob", "1.50")) },
		"several": func() *TransferCommand {
			return move("several", post("ann", "bob", "1"),
				post("bob", "cid", "2"))
		},
		"up to, less": func() *TransferCommand { return move("less", post("ann", "bob", "up to 2.50")) },
		"up to, cut":  func() *TransferCommand { return move("cut", post("cid", "bob", "up to 50")) },
		"metadata and time": func() *TransferCommand {
			return move("m",
				post("ann", "bob", "1")).with(dressed(yesterday))
		},
		"all": func() *TransferCommand { return move("all", post("ann", "bob", "all")) },
	}
	for _, name := range []string{"exact", "several", "up to, less", "up to, cut", "metadata and time", "all"} {
		first := p.must(tests[name]())
		entries := len(p.made)
		if again := p.existed(tests[name]()); again != first {
			t.Errorf("%s: repeat %+v, first %+v", name, again, first)
		}
		if len(p.made) != entries {
			t.Errorf("%s was executed again", name)
		}
	}
	same := []*TransferCommand{
		move("exact", post("ann", "bob", "1.5")),
		move("exact", post("ann", "bob", "1.5")).with(func(p *TransferParams) { p.Metadata = map[string]string{} }),
		move("exact", post("ann", "bob", "1.5")).when(on("ann", 77, "")), // conditions of that time
		move("less", post("ann", "bob", "up to 2.5")),
		move("m", post("ann", "bob", "1")).with(dressed(yesterday.In(time.FixedZone("", 3600)))),
		// the time omitted
		move("m", post("ann", "bob", "1")).with(func(p *TransferParams) { p.Metadata = noted("b", "2", "a", "1") }),
	}
	for _, c := range same {
		p.existed(c)
	}
}

func dressed(at time.Time) func(*TransferParams) {
	return func(p *TransferParams) { p.Metadata, p.EffectiveAt = noted("a", "1", "b", "2"), at }
}

func TestTransferUnderATakenBizNoNamesTheFieldsThatDiffer(t *testing.T) {
	p := newTown(t)
	yesterday := noon.Add(-24 * time.Hour)
	p.give("ann", "10", of("USD"))
	p.give("bob", "10", of("USD"))
	p.must(move("t", post("ann", "bob", "10")))
	p.must(move("two", post("ann", "bob", "1"), post("bob", "cid", "1")))
	p.must(move("up", post("ann", "bob", "up to 10")))
	p.must(move("mixed", post("ann", "bob", "1"), post("ann", "bob", "up to 2")))
	p.must(move("all", post("cid", "bob", "all")))
	p.must(move("dressed", post("ann", "bob", "1")).with(dressed(yesterday)))
	p.must(hold("h", "ann", "bob", "1"))
	p.must(capture("c", "h", ""))
	p.must(reverse("r", "t"))
	usd := post("ann", "bob", "10")
	usd.Asset = "USD"
	tests := []struct {
		c    *TransferCommand
		want string
	}{
		{move("t", post("bob", "bob", "10")), "postings[0].from"},
		{move("t", post("ann", "cid", "10")), "postings[0].to"},
		{move("t", usd), "postings[0].asset"},
		{move("t", post("ann", "bob", "10.01")), "postings[0].amount"},
		{move("t", post("ann", "bob", "10")).with(typed("charge")), "type"},
		{move("t", post("ann", "bob", "10")).with(dressed(yesterday)), "effective_time,metadata"},
		{move("t", post("ann", "bob", "up to 10")), "postings[0].form"},
		{move("t", post("ann", "bob", "all")), "postings[0].form"},
		{move("t", post("ann", "bob", "10"), post("ann", "bob", "10")), "postings"},
		{move("t", post("bob", "ann", "9")).with(typed("x")),
			"postings[0].amount,postings[0].from,postings[0].to,type"},
		{move("two", post("ann", "bob", "1"), post("bob", "cid", "2")), "postings[1].amount"},
		{move("two", post("ann", "bob", "1"), post("ann", "cid", "1")), "postings[1].from"},
		{move("two", post("ann", "bob", "1")), "postings"},
		{move("up", post("ann", "bob", "up to 10.01")), "postings[0].amount"},
		{move("up", post("ann", "bob", "10")), "postings[0].form"},
		{move("up", post("ann", "cid", "up to 10")), "postings[0].to"},
		{move("mixed", post("ann", "bob", "1"), post("ann", "bob", "up to 3")), "postings[1].amount"},
		{move("mixed", post("ann", "bob", "2"), post("ann", "bob", "up to 2")), "postings[0].amount"},
		{move("mixed", post("ann", "bob", "up to 1"), post("ann", "bob", "up to 2")), "postings[0].form"},
		{move("all", post("cid", "ann", "all")), "postings[0].to"},
		{move("dressed", post("ann", "bob", "1")).with(dressed(yesterday.Add(time.Microsecond))), "effective_time"},
		{move("dressed", post("ann", "bob", "1")).with(dressed(yesterday),
			func(p *TransferParams) { p.Metadata["b"] = "3" }), "metadata"},
		{move("dressed", post("ann", "bob", "1")), "metadata"},
		{move("c", post("ann", "bob", "1")), "call"},
		{move("r", post("bob", "ann", "10")), "call"},
	}
	for _, test := range tests {
		p.differs(test.c, test.want)
	}
}

func TestRepeatedHoldAnswersTheHoldAsItIsNow(t *testing.T) {
	p := newTown(t)
	for _, n := range []string{"10", "up to 20.5", "all"} {
		first := p.must(hold(n, "ann", "bob", n)).(*Hold)
		p.must(capture("c "+n, n, "1"))
		again := p.existed(hold(n, "ann", "bob", n)).(*Hold)
		if again.ID != first.ID {
			t.Errorf("%s: repeat %+v", n, again)
		}
		looks(t, first, Held, "0", first.Format()) // the first answer is a snapshot
		p.must(capture("d "+n, n, "1"))
		if again.Captured != units("1") { // and so is this one
			t.Errorf("%s: captured %s", n, again.Captured)
		}
	}
	p.existed(hold("10", "ann", "bob", "10.00"))
	p.existed(hold("up to 20.5", "ann", "bob", "up to 20.50"))
}

// Format is the amount of the hold.
func (h *Hold) Format() string { return (&Account{Scale: h.Scale}).Format(h.Amount) }

func TestHoldUnderATakenBizNoNamesTheFieldsThatDiffer(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "10"))
	p.must(hold("up", "ann", "bob", "up to 10"))
	tests := []struct {
		n      string
		want   string
		change func(*HoldParams)
	}{
		{"10", "from", func(p *HoldParams) { p.From = "bob" }},
		{"10", "to", func(p *HoldParams) { p.To = "" }},
		{"10", "asset", func(p *HoldParams) { p.Asset = "USD" }},
		{"10.01", "amount", nil},
		{"up to 10", "form", nil},
		{"all", "form", nil},
		{"10", "life", func(p *HoldParams) { p.Life++ }},
		{"10", "metadata", func(p *HoldParams) { p.Metadata = noted("a", "1") }},
		{"11", "amount,from,life,to", func(p *HoldParams) { p.From, p.To, p.Life = "bob", "ann", time.Minute }},
	}
	for _, test := range tests {
		c := hold("h", "ann", "bob", test.n)
		if test.change != nil {
			test.change(&c.HoldParams)
		}
		p.differs(c, test.want)
	}
	p.differs(hold("up", "ann", "bob", "up to 11"), "amount")
	p.differs(hold("up", "ann", "bob", "10"), "form")
	p.must(move("h", post("ann", "bob", "1"))) // holds and transfers have separate biz_no namespaces
}

func TestRepeatedCaptureAnswersTheFirstAndTheHoldAsItIsNow(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	first := p.must(capture("c", "h", "10")).(Capture)
	p.must(capture("rest", "h", "", to("cid")))
	again := p.existed(capture("c", "h", "10.0", to("bob"))).(Capture) // bob is the hold's default destination
	if again.Transfer != first.Transfer {
		t.Errorf("repeat %+v", again.Transfer)
	}
	looks(t, first.Hold, Held, "10", "50")
	looks(t, again.Hold, Captured, "60", "0")
	p.existed(capture("rest", "h", "", to("cid"), restReleased)) // capturing everything leaves no rest
	p.stands("ann 40.00 0.00 2")
}

func TestCaptureUnderATakenBizNoNamesTheFieldsThatDiffer(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	p.must(hold("i", "ann", "bob", "1"))
	p.must(move("t", post("ann", "bob", "1")))
	p.must(capture("c", "h", "10"))
	p.must(capture("d", "i", ""))
	p.must(capture("e", "h", "10", restReleased))
	p.must(reverse("r", "c"))
	p.differs(capture("c", "i", "10"), "hold_biz_no")
	p.differs(capture("c", "none", "10"), "hold_biz_no")
	p.differs(capture("c", "h", "11"), "amount")
	p.differs(capture("c", "h", ""), "amount") // the first request named an amount
	p.differs(capture("d", "i", "1"), "amount")
	p.differs(capture("c", "h", "10", to("cid")), "to")
	p.differs(capture("c", "h", "10", func(p *CaptureParams) { p.Type = "fee" }), "type")
	p.differs(capture("c", "h", "10", func(p *CaptureParams) { p.Metadata = noted("a", "1") }), "metadata")
	p.differs(capture("c", "h", "10", restReleased), "release_rest")
	p.differs(capture("e", "h", "10"), "release_rest")
	p.differs(capture("t", "h", "1"), "call")
	p.differs(capture("r", "h", "10"), "call")
}

// A hold may be created and captured between discovery and look-up. Then its accounts are not locked, but the
// missing details of the hold must not count as differences.
func TestRepeatedCaptureOfAConcurrentHoldRunsAgain(t *testing.T) {
	p := newTown(t)
	p.must(hold("h", "ann", "bob", "60"))
	p.must(capture("c", "h", "10"))
	delete(p.accounts, AccountKey{1, "ann", "CNY"})
	if answer, err := p.Do(capture("c", "h", "10")); err != commit.ErrMoreRows {
		t.Errorf("answered with %+v, %v", answer, err)
	}
	if answer, err := p.Do(release("h")); err != commit.ErrMoreRows {
		t.Errorf("answered with %+v, %v", answer, err)
	}
}

func TestReversalUnderATakenBizNoNamesTheFieldsThatDiffer(t *testing.T) {
	p := newTown(t)
	p.must(move("t", post("ann", "bob", "1")))
	p.must(move("u", post("ann", "bob", "1")))
	p.must(reverse("r", "t"))
	p.existed(reverse("r", "t"))
	p.differs(reverse("r", "u"), "transfer_biz_no")
	p.differs(reverse("r", "none"), "transfer_biz_no")
	p.differs(&ReverseCommand{Caller: me, ReverseParams: ReverseParams{TransferID: 99, BizNo: "r"}}, "transfer_id")
	p.differs(reverse("u", "t"), "call")
	c := reverse("r", "t")
	c.Metadata, c.EffectiveAt = noted("a", "1"), noon
	p.differs(c, "effective_time,metadata")
}
