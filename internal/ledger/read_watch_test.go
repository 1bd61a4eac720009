package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// watcher follows the entries and checks them against the rules.
type watcher struct {
	*readWorld
	cursor, pattern string
	limit           int
	versions        map[string]int64 // newest version seen, by account
	seen            int
}

func (w *readWorld) watch(cursor, pattern string, limit int) *watcher {
	return &watcher{readWorld: w, cursor: cursor, pattern: pattern, limit: limit, versions: map[string]int64{}}
}

// next reads once, and checks that the versions of every account are consecutive, starting at 1.
func (w *watcher) next() error {
	commits, next, err := w.EntriesAfter(w.ctx, 1, w.cursor, w.pattern, w.limit)
	if err != nil {
		return err
	}
	for i, c := range commits {
		if len(c.Entries) == 0 {
			return fmt.Errorf("a commit without entries at %s", c.Cursor)
		}
		for _, e := range c.Entries {
			if e.Version != w.versions[e.Account]+1 {
				return fmt.Errorf("version %d of %s comes after %d", e.Version, e.Account, w.versions[e.Account])
			}
			w.versions[e.Account] = e.Version
			w.seen++
		}
		if i == len(commits)/2 {
			next = c.Cursor // as if disconnected here
			break
		}
	}
	w.cursor = next
	return nil
}

func TestWatchingSkipsAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	codes := []string{"user:0", "user:1", "user:2", "user:3", "user:4", "user:5"}
	w.accounts("CNY", codes...)
	engines := []*flow.Engine{w.engine, w.newEngine()}
	const writers, each = 24, 25
	var work, watch sync.WaitGroup
	for n := range writers {
		work.Go(func() {
			for i := range each {
				c := w.transferCommand(fmt.Sprint(n, ".", i), "world", codes[(n*7+i)%6], "5")
				c.Postings = append(c.Postings,
					ledger.Posting{From: codes[(n*7+i)%6], To: codes[(n+i*5+1+(n*7+i)%6)%6], Asset: "CNY",
						Amount: dec("1")})
				if c.Postings[1].From == c.Postings[1].To {
					c.Postings = c.Postings[:1]
				}
				if _, err := engines[n%2].Do(w.ctx, w.submission(c)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	all := func() (total int) {
		if err := w.pool.QueryRow(w.ctx, "select count(*) from ledger_entries").Scan(&total); err != nil {
			t.Error(err)
		}
		return total
	}
	for _, limit := range []int{1, 20, 100_000} {
		follow := w.watch("0", "", limit)
		watch.Go(func() {
			for err := error(nil); ; {
				if err = follow.next(); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					if follow.seen == all() {
						return
					}
				case <-w.ctx.Done():
					return
				default:
				}
			}
		})
	}
	watch.Wait()
	late := w.watch("0", "", 7)
	w.poll("the late watcher", func() bool {
		if err := late.next(); err != nil {
			t.Fatal(err)
		}
		return late.seen == all()
	})
}

// TestCommitsThatOverlapComeInTheOrderOfTheirEffects has a batch that is the first to get its transaction id and the
// last to get its second lock, so it depends on a batch with a higher id.
func TestCommitsThatOverlapComeInTheOrderOfTheirEffects(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1", "user:2", "user:3")
	old := w.watch("", "", 100)
	for range 2 { // "" returns the current cursor, which then has nothing new
		if err := old.next(); err != nil || old.seen > 0 {
			t.Fatal(err, old.seen)
		}
	}
	slow := w.manualBatch("user:1")
	between := must(w.pool.Begin(w.ctx))
	t.Cleanup(func() { _ = between.Rollback(context.Background()) })
	if _, err := between.Exec(w.ctx, "select pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	quick := w.manualBatch("world", "user:2")
	quick.stamp()
	quick.post("world", "user:2", 5)
	quick.commit()
	slow.lock("world")
	slow.stamp()
	slow.post("world", "user:1", 7)
	slow.commit()

	late := w.watch("", "", 100)
	for range 2 {
		if err := late.next(); err != nil {
			t.Fatal(err)
		}
		if err := old.next(); err != nil || old.seen > 0 {
			t.Fatalf("with a transaction in between still running: %v, %d seen", err, old.seen)
		}
	}
	if err := between.Rollback(w.ctx); err != nil {
		t.Fatal(err)
	}
	// Other tests on the same server run transactions too.
	w.poll("both commits", func() bool {
		if err := old.next(); err != nil {
			t.Fatal(err)
		}
		return old.seen > 0
	})
	if old.seen != 4 || old.versions["world"] != 2 {
		t.Errorf("%d seen, %v", old.seen, old.versions)
	}
	w.poll("both commits, from a later now", func() bool {
		if err := late.next(); err != nil {
			t.Fatal(err)
		}
		return late.seen == 4
	})
}

func TestTheCursorOfAPatternPassesOtherCommits(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1", "shop:1")
	for i := range 5 {
		w.transfer(fmt.Sprint("u", i), "world", "user:1", "1")
	}
	var end *watcher
	w.poll("the cursor to move on", func() bool {
		end = must(w.watchAll("0", "shop:*"))
		return end.cursor != "0"
	})
	if end.seen > 0 {
		t.Fatalf("%d entries of the shop, want 0", end.seen)
	}
	w.transfer("s", "world", "shop:1", "1")
	w.poll("the shop's entry", func() bool {
		end = must(w.watchAll(end.cursor, "shop:*"))
		return end.seen == 1
	})
	if len(end.versions) != 1 || end.versions["shop:1"] != 1 {
		t.Errorf("seen %v", end.versions)
	}
}

// watchAll reads until there is nothing new.
func (w *readWorld) watchAll(cursor, pattern string) (*watcher, error) {
	f := w.watch(cursor, pattern, 2)
	for {
		before := f.cursor
		if err := f.next(); err != nil || f.cursor == before {
			return f, err
		}
	}
}

func TestForgedCursorIsRefused(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	for _, cursor := range []string{"x", "1", "1.", ".1", "01.1", "1.1.1", "t.1.1.01", "t.1.-1.1", "t.9999999999.1.1",
		"t.0.0.0", "-1.1", "0.0", " 0", strings.Repeat("9", 30)} {
		if _, _, err := w.EntriesAfter(w.ctx, 1, cursor, "", 10); !fault.Is(err, fault.FieldInvalid) {
			t.Errorf("%q: %v", cursor, err)
		}
	}
	if _, _, err := w.EntriesAfter(w.ctx, 1, "0", "a*", 10); !fault.Is(err, fault.FieldInvalid) {
		t.Errorf("a bad pattern: %v", err)
	}
}

func TestTheLimitNeverSplitsACommit(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	c := w.transferCommand("many", "world", "user:1", "1")
	c.Postings = slices.Repeat(c.Postings, 50)
	w.do(c)
	w.transfer("one", "world", "user:1", "1")
	var sizes []int
	cursor := "0"
	w.poll("both commits", func() bool {
		commits, next, err := w.EntriesAfter(w.ctx, 1, cursor, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commits {
			sizes = append(sizes, len(c.Entries))
		}
		cursor = next
		return len(sizes) >= 2
	})
	if !slices.Equal(sizes, []int{100, 2}) {
		t.Errorf("commits of %v entries", sizes)
	}
}

// Transaction 999 sorts before 1000: numerically, not as text.
func TestCommitsAreOrderedByNumericTransactionID(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	super := pgtest.Pool(t, w.db.SuperDSN)
	for i, xid := range []string{"2", "9", "10"} {
		_, err := super.Exec(w.ctx, "insert into commit_batches (batch_id, xid, recorded_at, commands, instance) "+
			"values ($1, cast($2::text as xid8), $3, 1, 'test')",
			1_000_000+i, xid, time.Unix(int64(i), 0))
		if err != nil {
			t.Fatal(err)
		}
	}
	_, now, err := w.EntriesAfter(w.ctx, 1, "", "", 1)
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Split(now, ".")
	history := part[0] + "." + part[1]
	if _, next, err := w.EntriesAfter(w.ctx, 1, history+".2.1000000", "", 1); err != nil ||
		strings.HasPrefix(next, history+".9.") {
		t.Errorf("after all commits the cursor is %s, %v", next, err)
	}
}
