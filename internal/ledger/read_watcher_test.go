package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// A read of the database may end within a group of the tail. The watcher then gets the rest of that group.
func TestWatcherContinuesWithinAGroupOfTheTail(t *testing.T) {
	tail, epoch := NewTail(nil), commit.Epoch{Term: "1-x"}
	at := func(xid uint64) position { return position{epoch: 1, xid: xid} }
	l := &lane{ready: true, since: at(1), changed: make(chan struct{})}
	entry := func(account string, s int64) Entry { return Entry{Account: account, RecordedAt: time.Unix(s, 0)} }
	l.groups = []*group{
		{lane: l, end: at(4), cursor: "c4", entries: []Entry{entry("a", 5), entry("b", 3), entry("c", 4)},
			batches: []position{at(2), at(3), at(4)}},
		{lane: l, end: at(6), cursor: "c6", entries: []Entry{entry("d", 6)}, batches: []position{at(6)}},
	}
	tail.lanes[1], tail.epoch, tail.at, tail.known = l, epoch, at(9), true
	for after, want := range map[uint64]string{1: "[b c a][d]", 2: "[b c][d]", 3: "[c][d]", 4: "[d]", 5: "[d]", 6: "",
		9: "", 12: ""} {
		w := &Watcher{tail: tail, tenant: 1, matches: func(string) bool { return true }, lane: l, placed: true,
			epoch: epoch, after: at(after)}
		commits, _, following, err := w.Follow(100)
		got := ""
		for _, c := range commits {
			var codes []string
			for _, e := range c.Entries {
				codes = append(codes, e.Account)
			}
			got += fmt.Sprint(codes)
		}
		if end := at(max(after, 9)); err != nil || !following || got != want || w.after != end {
			t.Errorf("after %d: %s, not %s; following %v, at %v, not %v: %v", after, got, want, following, w.after, end,
				err)
		}
	}
	w := &Watcher{tail: tail, tenant: 1, lane: l, placed: true, epoch: epoch, after: at(0)}
	if _, _, following, _ := w.Follow(100); following {
		t.Error("a watcher from before the memory of the tail follows")
	}
}

// A poll reads the entries of the tenants that were watched at its beginning. A tenant that joins during the poll gets
// only later entries.
func TestTenantThatJoinsDuringAPollHasNoneOfItsEntries(t *testing.T) {
	tail, ctx := NewTail(nil), t.Context()
	tail.known, tail.at = true, position{xid: 3}
	if l := tail.join(1); !l.ready || l.since != tail.at {
		t.Errorf("before the poll: %+v", l)
	}
	if lanes, after := tail.beginPoll(ctx); len(lanes) != 1 || after != tail.at {
		t.Fatalf("%d lanes, after %v", len(lanes), after)
	}
	late := tail.join(2)
	if late.ready {
		t.Error("the tenant has the entries of the poll")
	}
	tail.endPoll(ctx, nil, position{xid: 7})
	if !late.ready || late.since.xid != 7 {
		t.Errorf("after the poll: %+v", late)
	}
}
