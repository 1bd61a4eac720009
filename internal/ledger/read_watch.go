package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Commit is the entries of one commit, or of a few overlapping ones, in posting order. Cursor continues after
// it.
type Commit struct {
	Cursor  string
	Entries []Entry
}

// entriesAfter returns the commits after a cursor that have entries of accounts whose codes match a pattern, in
// commit order: a later answer never contains an earlier commit, and none is skipped. It stops after about
// limit entries, never within a commit. The next cursor also passes commits without matching entries; it is
// unchanged if there is nothing new. An empty cursor begins now, "0" at the beginning.
//
// Commits are read by epoch and transaction id, below the oldest running transaction, so a long-running
// transaction in the same database server delays all of them. A batch gets its transaction id with its first
// lock and may then wait for a batch with a higher id; such overlapping commits are returned together. Returns
// fault FIELD_INVALID for an invalid cursor or pattern, and CURSOR_EPOCH_ENDED for a cursor from another
// epoch.
func (r *Reader) entriesAfter(ctx context.Context, tenant int32, cursor string, p pattern,
	limit int) (commits []Commit, epoch commit.Epoch, next position, err error) {
	if epoch, err = commit.CurrentEpoch(ctx, r.pool); err != nil {
		return nil, epoch, next, err
	}
	if cursor == "" {
		next, err = r.lastCommit(ctx)
		return nil, epoch, next, err
	}
	if next, err = parseCursor(cursor, epoch); err != nil {
		return nil, epoch, next, err
	}
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) error {
		batches, err := commitsAfter(ctx, d, next)
		if err != nil || len(batches) == 0 {
			return err
		}
		if batches, err = withEntries(ctx, d, tenant, batches, limit); err != nil {
			return err
		}
		next = batches[len(batches)-1].position
		commits, err = entriesOf(ctx, d, tenant, batches, p, epoch)
		return err
	})
	return commits, epoch, next, err
}

// position orders commits by epoch, transaction id and batch number.
type position struct {
	epoch int32
	xid   uint64
	batch int64
}

// cursor encodes the position for a caller. It embeds the epoch, because the commits that the caller has seen
// may be lost when the epoch ends.
func (p position) cursor(now commit.Epoch) string {
	if p == (position{}) {
		return "0"
	}
	return fmt.Sprintf("%s.%d.%d.%d", now.Term, p.epoch, p.xid, p.batch)
}

func parseCursor(s string, now commit.Epoch) (p position, err error) {
	if s == "0" {
		return p, nil
	}
	part := strings.Split(s, ".")
	if len(part) != 4 {
		return p, badCursor()
	}
	epoch, err1 := strconv.ParseInt(part[1], 10, 32)
	xid, err2 := strconv.ParseUint(part[2], 10, 64)
	batch, err3 := strconv.ParseInt(part[3], 10, 64)
	p = position{epoch: int32(epoch), xid: xid, batch: batch}
	if errors.Join(err1, err2, err3) != nil || p.cursor(commit.Epoch{Term: part[0]}) != s {
		return position{}, badCursor()
	}
	if part[0] != now.Term {
		return position{}, CursorEpochEnded.New("the database was restored, or a standby was promoted, "+
			"after the cursor was issued: watch from \"0\", or with an empty cursor after reading the earlier "+
			"entries with ListEntries").
			With("epoch_began", now.Began.Format(time.RFC3339Nano))
	}
	return p, nil
}

func badCursor() error {
	return fault.InvalidField("cursor", "was not issued by this method")
}

// watchedBatch is a row of commit_batches for watching.
type watchedBatch struct {
	position
	at      time.Time
	final   bool // no earlier transaction is still running
	cut     bool // last batch of its group
	entries int64
}

func watched(row db.CommitPageRow) (b watchedBatch, err error) {
	b = watchedBatch{position: position{epoch: row.Epoch, batch: row.BatchID}, at: row.RecordedAt,
		final: row.Final}
	b.xid, err = strconv.ParseUint(row.Xid, 10, 64)
	return b, err
}

// watchBatches is how many rows of commit_batches are read at once, countBatches how many batches have their
// entries counted first. watchOverlap bounds the time from a batch's first lock to its timestamp; the engine
// allows 60 s.
const (
	watchBatches = 1_000
	countBatches = 8
	watchOverlap = time.Minute
)

// commitsAfter returns the final commits after a position in whole groups, about watchBatches of them.
// Without final commits it returns none.
func commitsAfter(ctx context.Context, d db.DBTX, after position) ([]watchedBatch, error) {
	for count := watchBatches; ; count *= 4 {
		count = min(count, math.MaxInt32)
		rows, err := q.CommitPage(ctx, d,
			db.CommitPageParams{AfterEpoch: after.epoch, AfterXid: strconv.FormatUint(after.xid, 10),
				AfterBatch: after.batch,
				Count:      int32(count)})
		if err != nil {
			return nil, err
		}
		batches := make([]watchedBatch, len(rows))
		for i, row := range rows {
			if batches[i], err = watched(row); err != nil {
				return nil, err
			}
		}
		more := len(rows) == count
		if cut := markCuts(batches, more); cut > 0 || !more || !batches[0].final {
			return batches[:cut], nil
		}
	}
}

// markCuts splits batches, ordered by position, into groups: no batch before a cut may depend on a batch after the cut.
// Batch B can depend on batch A only if B locked its rows after A's commit. So B's time is not before A's, and A is
// visible if B is. Times of different epochs come from different clocks, but epochs are ordered. more means that
// further batches follow. Returns the end of the last final group.
func markCuts(batches []watchedBatch, more bool) (end int) {
	for len(batches) > end {
		rest := batches[end:]
		n := slices.IndexFunc(rest, func(b watchedBatch) bool { return b.epoch != rest[0].epoch })
		if n < 0 {
			return end + markCutsOfEpoch(rest, more)
		}
		cut := markCutsOfEpoch(rest[:n], false)
		if end += cut; cut < n {
			return end
		}
	}
	return end
}

func markCutsOfEpoch(batches []watchedBatch, more bool) (end int) {
	var latest time.Time
	for i := range batches {
		if batches[i].at.After(latest) {
			latest = batches[i].at
		}
	}
	earliest := noEnd // of all batches that follow
	if more {
		earliest = latest.Add(-watchOverlap)
	}
	behind := make([]time.Time, len(batches))
	for i := len(batches) - 1; i >= 0; i-- {
		behind[i] = earliest
		if batches[i].at.Before(earliest) {
			earliest = batches[i].at
		}
	}
	latest = time.Time{}
	for i := range batches {
		b := &batches[i]
		if !b.final {
			break
		}
		if b.at.After(latest) {
			latest = b.at
		}
		if b.cut = latest.Before(behind[i]); b.cut {
			end = i + 1
		}
	}
	return end
}

// lastCommit is the position of the last final commit that ends a group.
func (r *Reader) lastCommit(ctx context.Context) (position, error) {
	var rows []db.CommitLastRow
	err := pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		rows, err = q.CommitLast(ctx, d, watchBatches)
		return err
	})
	if err != nil || len(rows) == 0 {
		return position{}, err
	}
	slices.Reverse(rows)
	batches := make([]watchedBatch, len(rows))
	for i, row := range rows {
		if batches[i], err = watched(db.CommitPageRow(row)); err != nil {
			return position{}, err
		}
	}
	if end := markCuts(batches, false); end > 0 {
		return batches[end-1].position, nil
	}
	return batches[0].position, nil
}

// withEntries counts the tenant's entries in batches, and returns the first groups with about limit entries. It counts
// in growing steps: otherwise each call of a lagging caller would count the whole backlog.
func withEntries(ctx context.Context, d db.DBTX, tenant int32, batches []watchedBatch,
	limit int) ([]watchedBatch, error) {
	var entries int64
	for done, count := 0, countBatches; done < len(batches); count *= 2 {
		part := batches[done:min(done+count, len(batches))]
		counts, err := q.EntryCountOfBatch(ctx, d,
			db.EntryCountOfBatchParams{TenantID: tenant, BatchIds: batchIDs(part)})
		if err != nil {
			return nil, err
		}
		for _, c := range counts {
			part[c.N-1].entries = c.Entries
		}
		for i := range part {
			entries += part[i].entries
			if part[i].cut && entries >= int64(limit) {
				return batches[:done+i+1], nil
			}
		}
		done += len(part)
	}
	return batches, nil
}

// entriesOf reads the entries of whole groups of batches.
func entriesOf(ctx context.Context, d db.DBTX, tenant int32, batches []watchedBatch, p pattern,
	epoch commit.Epoch) ([]Commit, error) {
	rows, err := q.EntryOfBatch(ctx, d, db.EntryOfBatchParams{TenantID: tenant, BatchIds: batchIDs(batches), Low: p.low,
		High:  p.high,
		Match: p.match})
	if err != nil {
		return nil, err
	}
	var commits []Commit
	for i, first := 0, 0; i < len(batches); i++ {
		if !batches[i].cut {
			continue
		}
		c := Commit{Cursor: batches[i].cursor(epoch)}
		for len(rows) > 0 && int(rows[0].N) <= i+1 {
			c.Entries = append(c.Entries, watchedEntry(rows[0]))
			rows = rows[1:]
		}
		if i > first {
			inTime(c.Entries)
		}
		if len(c.Entries) > 0 {
			commits = append(commits, c)
		}
		first = i + 1
	}
	return commits, nil
}

// inTime sorts the entries of several batches by time, then account and version.
func inTime(entries []Entry) {
	slices.SortStableFunc(entries, func(x, y Entry) int {
		return cmp.Or(x.RecordedAt.Compare(y.RecordedAt), cmp.Compare(x.AccountID, y.AccountID),
			cmp.Compare(x.Version, y.Version))
	})
}

func batchIDs(batches []watchedBatch) []int64 {
	ids := make([]int64, len(batches))
	for i := range batches {
		ids[i] = batches[i].batch
	}
	return ids
}

func watchedEntry(r db.EntryOfBatchRow) Entry {
	return Entry{AccountID: r.AccountID, Account: r.Code, Asset: r.Asset, Scale: uint8(r.Scale), Version: r.Version,
		TransferID: r.TransferID, Posting: r.Posting, Amount: r.Amount, Before: r.BalanceBefore, After: r.BalanceAfter,
		RecordedAt: r.RecordedAt, EffectiveAt: pg.OrZero(r.EffectiveAt)}
}
