package commit

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// Convention 10 of docs/engine.md: a batch number is used within an hour of being fetched.
func TestOldBatchNumbersAreNotUsed(t *testing.T) {
	t.Parallel()
	b := batchIDs{unused: 5, limit: 10, fetched: time.Now().Add(-blockLife + time.Minute)}
	if id, ok := b.take(); id != 5 || !ok {
		t.Errorf("a number fetched 59 minutes ago: %d, %v", id, ok)
	}
	b.fetched = time.Now().Add(-blockLife - time.Second)
	for range 2 {
		if id, ok := b.take(); ok {
			t.Errorf("number %d, fetched more than an hour ago, is used", id)
		}
	}
}

// unrecorded begins an epoch that no server has recorded, as a failover does, and returns the last recorded one.
func (w *world) unrecorded() (epoch int) {
	w.t.Helper()
	err := w.super.QueryRow(w.t.Context(), `insert into commit_epochs (epoch, xid, base)
		select coalesce(max(epoch), 0) + 1, pg_current_xact_id()::xid, 0 from commit_epochs
		returning epoch`).Scan(&epoch)
	if err != nil {
		w.t.Fatal(err)
	}
	return epoch
}

// The first commit of an epoch needs the row of the epoch. A later restore counts on from the last recorded epoch, and
// would reuse the number of an epoch that only its commits carry.
func TestFirstCommitRecordsTheEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e, direct := w.engine(), submission(add("c1", 1))
	direct.Direct = &Direct{Attempts: 1}
	for name, s := range map[string]Submission[*toyTx]{"batch": submission(add("c0", 1)), "direct command": direct} {
		mustDo(t, e, s) // takes a block of numbers
		last := w.unrecorded()
		mustDo(t, e, s)
		var committed, recorded int
		err := w.super.QueryRow(t.Context(), `select (select max(epoch) from commit_batches), max(epoch)
			from commit_epochs`).
			Scan(&committed, &recorded)
		if err != nil || committed != last+1 || recorded != committed {
			t.Errorf("%s: after epoch %d commits carry epoch %d, recorded is %d, %v",
				name, last, committed, recorded, err)
		}
	}
}

// A server vanishes during the first batch of an epoch: before the COMMIT of the batch, whose transaction no timeout of
// Postgres ends, or after it has sent the row of the epoch. Other servers still commit.
func TestVanishedFirstBatchStopsNoOthers(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]func() func(data []byte) (pass int, vanish bool){
		"batch without COMMIT": func() func([]byte) (int, bool) {
			return func(data []byte) (int, bool) {
				return lastBind(data), bytes.Contains(data, []byte("through-the-proxy"))
			}
		},
		"row of the epoch": func() func([]byte) (int, bool) {
			prepared := false
			return func(data []byte) (int, bool) {
				if !prepared {
					prepared = bytes.Contains(data, []byte("insert into commit_epochs"))
					return 0, false
				}
				return len(data), data[0] == 'B'
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			p := pgtest.NewProxy(t, w.dsn)
			vanishing, other := w.engine(w.through(p)), w.engine()
			mustDo(t, other, submission(add("c1", 1))) // records the epoch of the new database
			mustDo(t, vanishing, submission(add("c0", 1)))
			w.unrecorded()
			isLast := last()
			var vanished atomic.Bool
			p.Tap(pgtest.Requests, func(_ int, data []byte) (pass int, cut bool) {
				if vanished.Load() {
					return 0, false
				}
				pass, vanish := isLast(data)
				if !vanish {
					return len(data), false
				}
				vanished.Store(true)
				return pass, false
			})
			t.Cleanup(func() { p.Tap(pgtest.Requests, nil); p.SetDown(true); p.SetDown(false) })
			vanishing.start(within(t, time.Minute), submission(add("c0", 1)))
			eventually(t, "vanished", vanished.Load)
			p.Silence(pgtest.Requests, pgtest.Answers)
			if _, err := other.Do(within(t, 3*time.Second), submission(add("c1", 1))); err != nil {
				t.Errorf("a batch of another server, on another row: %v", err)
			}
		})
	}
}

// A session that inserts the row of the epoch and does not commit blocks all servers. They report not ready, and
// continue when the session ends.
func TestAnOpenRecordingOfTheEpochMakesUnready(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{"the row": "insert into commit_epochs default values",
		"the table": "lock table commit_epochs in share mode"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			e := w.engine()
			mustDo(t, e, submission(add("c0", 1)))
			w.unrecorded()
			end := w.holder(sql)
			start := time.Now()
			answer := e.start(within(t, time.Minute), submission(add("c0", 1)))
			eventually(t, "not ready", func() bool { return e.Ready() != nil })
			// the attempt itself would end after voidTimeout
			if took := time.Since(start); took > voidTimeout-2*time.Second {
				t.Errorf("ready for %v", took)
			}
			// A caller with a short deadline learns that its command had no effect.
			_, err := e.Do(within(t, recordWait), submission(add("c0", 10)))
			if f := fault.Of(err); f == nil || f.Reason != fault.DatabaseUnavailable {
				t.Errorf("a caller who left: %v", err)
			}
			eventually(t, "five attempts", func() bool { return e.metric(t, "attempts_total/lost") >= 5 })
			if took := time.Since(start); took > 2*voidTimeout { // also on new connections, each ends after recordWait
				t.Errorf("five attempts took %v", took)
			}
			end()
			if a := <-answer; a.err != nil {
				t.Errorf("after the other session ended: %v", a.err)
			}
			if err := e.Ready(); err != nil {
				t.Errorf("not ready: %v", err)
			}
			if n := w.int("select n from toy_counters"); n != 1_000_002 {
				t.Errorf("%d, want two effects", n)
			}
		})
	}
}

// A server whose first fetch of numbers is blocked so is not ready either, even if its callers leave before the fetch
// fails.
func TestCallersWhoLeaveDoNotHideAnOpenRecording(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	mustDo(t, w.engine(), submission(add("c0", 1)))
	w.unrecorded()
	defer w.holder("insert into commit_epochs default values")()
	e := w.engine()
	if _, err := e.Do(within(t, recordWait/2), submission(add("c0", 1))); err == nil {
		t.Error("a number was fetched")
	}
	eventually(t, "not ready", func() bool { return e.Ready() != nil })
}

// lastBind returns the offset of the last Bind message, which is that of COMMIT.
func lastBind(messages []byte) (last int) {
	for at := 0; at+5 <= len(messages); at += 1 + int(binary.BigEndian.Uint32(messages[at+1:])) {
		if messages[at] == 'B' {
			last = at
		}
	}
	return last
}
