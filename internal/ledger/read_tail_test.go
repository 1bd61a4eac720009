package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// follower watches through a tail, and records the entries.
type follower struct {
	*ledger.Watcher
	tenant   int32
	pattern  string
	got      []string // account/version
	versions map[string]int64
	reads    int           // in the database
	followed *atomic.Int64 // answers from memory
	reading  chan struct{} // bounds the reads at the same time
}

func (w *readWorld) follow(tail *ledger.Tail, cursor, pattern string) *follower {
	w.Helper()
	return &follower{Watcher: must(tail.Watch(w.tenant, cursor, pattern)), tenant: w.tenant, pattern: pattern,
		versions: map[string]int64{}, followed: new(atomic.Int64),
		reading: make(chan struct{}, 2)}
}

// step reads once. With wait, if there was nothing new, it returns when there may be.
func (f *follower) step(ctx context.Context, limit int, wait bool) error {
	commits, changed, following, err := f.Follow(limit)
	if err != nil {
		return err
	}
	if !following {
		f.reads++
		f.reading <- struct{}{}
		commits, err = f.Read(ctx, limit)
		if <-f.reading; err != nil {
			return err
		}
		changed = nil
	}
	n, next := len(f.got), f.Cursor()
	for i, c := range commits {
		if len(c.Entries) == 0 {
			return fmt.Errorf("a commit without entries at %s", c.Cursor)
		}
		for _, e := range c.Entries {
			if e.Version != f.versions[e.Account]+1 {
				return fmt.Errorf("version %d of %s comes after %d, following %v",
					e.Version, e.Account, f.versions[e.Account], following)
			}
			f.versions[e.Account] = e.Version
			f.got = append(f.got, fmt.Sprint(e.Account, "/", e.Version))
		}
		if i == len(commits)-1 && len(f.got)-n >= limit && c.Cursor != next {
			return fmt.Errorf("the cursor is %s after the last commit at %s", next, c.Cursor)
		}
	}
	if len(f.got) > n {
		if following {
			f.followed.Add(1)
		}
		return nil
	}
	if wait {
		select {
		case <-changed:
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// until calls step until the follower has seen a number of entries.
func (f *follower) until(t *testing.T, ctx context.Context, want int) {
	t.Helper()
	for len(f.got) < want {
		if err := f.step(ctx, 100, true); err != nil {
			t.Fatal(err)
		}
		if ctx.Err() != nil {
			t.Fatalf("%d entries of %d", len(f.got), want)
		}
	}
	if len(f.got) > want {
		t.Errorf("%d entries, not %d", len(f.got), want)
	}
}

// stored returns the stored entries of the matching accounts, as a watch of them would.
func (w *readWorld) stored(tenant int32, matches func(string) bool) (all []string) {
	w.Helper()
	rows := must(w.pool.Query(w.ctx, "select a.code, e.version from ledger_entries e "+
		"join ledger_accounts a using (tenant_id, account_id) where e.tenant_id = $1", tenant))
	for rows.Next() {
		var code string
		var version int64
		if err := rows.Scan(&code, &version); err != nil {
			w.Fatal(err)
		}
		if matches(code) {
			all = append(all, fmt.Sprint(code, "/", version))
		}
	}
	slices.Sort(all)
	return all
}

// tenantsOf returns worlds of more tenants of one database.
func (w *readWorld) tenantsOf(n int) (worlds []*readWorld) {
	super := pgtest.Pool(w.T, w.db.SuperDSN)
	for i := range n {
		other := *w
		other.tenant = must(access.EnsureTenant(w.ctx, super, fmt.Sprint("tenant", i)))
		other.setUp()
		worlds = append(worlds, &other)
	}
	return worlds
}

var tailPatterns = map[string]func(string) bool{
	"":       func(string) bool { return true },
	"user:*": func(c string) bool { return strings.HasPrefix(c, "user:") },
	"*:3":    func(c string) bool { return strings.HasSuffix(c, ":3") },
	"user:1": func(c string) bool { return c == "user:1" },
	"shop:*": func(string) bool { return false },
}

// 240 watchers of 6 tenants, some slow, some that reconnect, half with little memory, see each entry once and in order.
func TestWatchersOfOneTailSkipAndRepeatNothing(t *testing.T) {
	t.Parallel()
	first := newReadWorld(t)
	ctx, cancel := context.WithTimeout(first.ctx, 3*time.Minute)
	defer cancel()
	worlds := first.tenantsOf(6)
	codes := []string{"user:0", "user:1", "user:2", "user:3"}
	engines := []*flow.Engine{first.engine, first.newEngine()}
	tails := []*ledger.Tail{ledger.NewTail(first.Reader), ledger.NewTailThatKeeps(first.Reader, 60)}
	var writers, watchers sync.WaitGroup
	var fromMemory atomic.Int64
	reading := make(chan struct{}, 2)
	for i, w := range worlds {
		w.accounts("CNY", codes...)
		for n := range 4 {
			writers.Go(func() {
				for k := 0; k < 25 || fromMemory.Load() < 500 && ctx.Err() == nil; k++ {
					c := w.transferCommand(fmt.Sprint(n, ".", k), "world", codes[(n+k)%4], "5")
					c.Postings = append(c.Postings,
						ledger.Posting{From: codes[(n+k)%4], To: codes[(n+k+1+k%3)%4], Asset: "CNY", Amount: dec("1")})
					if _, err := engines[(i+n)%2].Do(ctx, w.submission(c)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	var followers []*follower
	for _, w := range worlds {
		for pattern := range tailPatterns {
			for n := range 8 {
				f := w.follow(tails[n%2], "0", pattern)
				f.followed, f.reading = &fromMemory, reading
				followers = append(followers, f)
				watchers.Go(func() {
					defer func() { f.Close() }()
					w.watchUntilDone(ctx, f, tails[n%2], n, done)
				})
			}
		}
	}
	watchers.Wait()
	fromDatabase := 0
	for _, f := range followers {
		want := first.stored(f.tenant, tailPatterns[f.pattern])
		slices.Sort(f.got)
		if !slices.Equal(f.got, want) {
			t.Errorf("tenant %d, %q: %d entries, not %d", f.tenant, f.pattern, len(f.got), len(want))
		}
		fromDatabase += f.reads
	}
	if fromMemory.Load() == 0 || fromDatabase == 0 {
		t.Errorf("%d messages from memory, %d reads of the database", fromMemory.Load(), fromDatabase)
	}
	for i, tail := range tails {
		if running, lanes, kept := tail.State(); running || lanes != 0 || kept != 0 {
			t.Errorf("tail %d of no watchers runs %v, with %d lanes and %d entries", i, running, lanes, kept)
		}
	}
}

// watchUntilDone follows until all writers are done and the follower has all entries. Every fourth watcher reads few
// entries at once. Every third one reconnects sometimes.
func (w *readWorld) watchUntilDone(ctx context.Context, f *follower, tail *ledger.Tail, n int, done <-chan struct{}) {
	want := -1
	for ctx.Err() == nil {
		limit := 1000
		if n%4 == 3 {
			limit = 1 + rand.IntN(60)
		}
		if err := f.step(ctx, limit, true); err != nil {
			w.Errorf("tenant %d, %q: %v", w.tenant, f.pattern, err)
			return
		}
		if n%3 == 2 && rand.IntN(10) == 0 {
			cursor := f.Cursor()
			f.Close()
			f.Watcher = must(tail.Watch(f.tenant, cursor, f.pattern))
		}
		select {
		case <-done:
			if want < 0 {
				want = len(w.stored(w.tenant, tailPatterns[f.pattern]))
			}
			if len(f.got) >= want {
				return
			}
		default:
		}
	}
	w.Errorf("tenant %d, %q: %d entries of %d", w.tenant, f.pattern, len(f.got), want)
}

func TestTailEndsWithItsEpoch(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	f := w.follow(ledger.NewTail(w.Reader), "0", "")
	defer func() { f.Close() }()
	w.transfer("t", "world", "user:1", "1")
	f.until(t, w.ctx, 2)
	w.poll("the watcher follows", func() bool {
		_, _, following, err := f.Follow(1)
		return following || err != nil
	})
	if _, err := pgtest.Pool(t, w.db.SuperDSN).Exec(w.ctx, "insert into commit_epochs (epoch) select max(epoch) + 1 "+
		"from commit_epochs"); err != nil {
		t.Fatal(err)
	}
	err := error(nil)
	w.poll("the watch ends", func() bool {
		err = f.step(w.ctx, 10, true)
		return err != nil
	})
	if !fault.Is(err, ledger.CursorEpochEnded) {
		t.Error(err)
	}
}

func TestTailThatCannotReadEndsItsWatches(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	f := w.follow(ledger.NewTail(w.Reader), "0", "")
	defer func() { f.Close() }()
	w.transfer("t", "world", "user:1", "1")
	f.until(t, w.ctx, 2)
	w.poll("the watcher follows", func() bool {
		_, _, following, err := f.Follow(1)
		return following || err != nil
	})
	super := pgtest.Pool(t, w.db.SuperDSN)
	if _, err := super.Exec(w.ctx, "revoke select on commit_batches from ledgerd_app"); err != nil {
		t.Fatal(err)
	}
	w.poll("the watch ends", func() bool {
		_, _, _, err := f.Follow(1)
		return err != nil
	})
	if _, err := super.Exec(w.ctx, "grant select on commit_batches to ledgerd_app"); err != nil {
		t.Fatal(err)
	}
	again := w.follow(ledger.NewTail(w.Reader), "0", "")
	defer func() { again.Close() }()
	again.until(t, w.ctx, 2)
}
