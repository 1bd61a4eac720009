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

// Commit is the entries of one commit, or of a few that overlapped, in the order in which they were
// posted. Cursor goes on after it.
type Commit struct {
	Cursor  string
	Entries []Entry
}

// EntriesAfter gives the commits after a cursor that have entries of accounts whose codes match a
// pattern, in commit order: nothing given later was committed earlier, and none is left out. It stops
// after about limit entries, never within a commit. The next cursor is also behind the commits that
// had nothing to give; it is the same cursor when there is nothing new. An empty cursor begins now,
// "0" at the beginning.
//
// Commits are read by epoch and the number of their transaction, below the oldest one still running, so a
// transaction that runs for long in the same server holds them all back. A batch gets its number with
// its first lock, and may then wait for another one with a higher number; commits that may have done
// so are given together. Returns fault FIELD_INVALID for a cursor or pattern that cannot be read, and
// CURSOR_HISTORY_ENDED for a cursor that was given in another epoch.
func (r *Reader) EntriesAfter(ctx context.Context, tenant int32, cursor, codes string,
	limit int) ([]Commit, string, error) {
	p, err := parsePattern(codes)
	if err != nil {
		return nil, "", err
	}
	epoch, err := commit.CurrentEpoch(ctx, r.pool)
	if err != nil {
		return nil, "", err
	}
	if cursor == "" {
		now, err := r.lastCommit(ctx)
		return nil, now.cursor(epoch), err
	}
	after, err := parseCursor(cursor, epoch)
	if err != nil {
		return nil, "", err
	}
	var commits []Commit
	next := after
	err = r.snapshot(ctx, func(d db.DBTX) error {
		batches, err := commitsAfter(ctx, d, after)
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
	if err != nil {
		return nil, "", err
	}
	return commits, next.cursor(epoch), nil
}

// position is a commit's place in the order: its epoch, its transaction's number in it, then its batch's.
type position struct {
	epoch int32
	xid   uint64
	batch int64
}

// cursor is the position for a caller, who must not use it when the epoch is over: the commits that he
// has seen may be gone.
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
		return position{}, CursorHistoryEnded.New("the database was restored, or a standby was promoted, after the cursor was issued: "+
			"watch from \"0\", or with an empty cursor after reading the earlier entries with ListEntries").
			With("epoch_began", now.Began.UTC().Format(time.RFC3339Nano))
	}
	return p, nil
}

func badCursor() error {
	return fault.FieldInvalid.New("cursor: was not issued by this method").WithField("cursor",
		"was not issued by this method")
}

// watchedBatch is a row of commit_batches as watching sees it.
type watchedBatch struct {
	position
	at      time.Time
	settled bool // no transaction before it still runs
	cut     bool // its group ends with it
	entries int64
}

func watched(row db.CommitPageRow) (b watchedBatch, err error) {
	b = watchedBatch{position: position{epoch: row.Epoch, batch: row.BatchID}, at: row.CommittedAt,
		settled: row.Settled}
	b.xid, err = strconv.ParseUint(row.Xid, 10, 64)
	return b, err
}

// Rows of commit_batches that are read at once, those of them whose entries are counted first, and how
// long at most a batch runs from its first lock to its time: 60 s is what the engine allows.
const (
	watchBatches = 1_000
	countBatches = 8
	watchOverlap = time.Minute
)

// commitsAfter gives the settled commits after a position in whole groups, about watchBatches of
// them: none when there are none.
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
		if cut := markCuts(batches, more); cut > 0 || !more || !batches[0].settled {
			return batches[:cut], nil
		}
	}
}

// markCuts finds where batches, in order of position, fall into groups: a cut has nothing before it
// that may build on what comes after it. A batch builds on another only if it locked its rows after
// the other's commit, so its time is not earlier; and what it builds on is visible when it is. Times of
// different epochs are of different clocks, but all of one comes before all of the next. With more,
// there are batches behind these. Returns the end of the last group that is settled.
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
	earliest := noEnd // of all that comes behind
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
		if !b.settled {
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

// lastCommit is the position of the last commit that is settled and has a cut behind it.
func (r *Reader) lastCommit(ctx context.Context) (position, error) {
	var rows []db.CommitLastRow
	err := r.snapshot(ctx, func(d db.DBTX) (err error) {
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

// withEntries counts the tenant's entries of batches and keeps as many groups as have about limit. It
// counts little further than that: who is far behind has all of them before him again with every call.
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

// inTime puts the entries of several batches in the order of their times, and the same time's by
// account and version.
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
		RecordedAt: r.RecordedAt.UTC(), EffectiveAt: pg.OrZero(r.EffectiveAt)}
}
