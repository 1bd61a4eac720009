package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// journal is generated history: the world funds every account, then accounts pay each other. It is as valid as
// history written by the server, including the batches.
type journal struct {
	tenant    int32
	accounts  int // without the hot account and the world, which follow
	transfers int
	began     time.Time

	firstAccount, firstTransfer int64 // ids
	balances, versions          []int64
}

const (
	// opening is every account's initial balance: more than it can spend, so that the check of funds runs and
	// never refuses. 10^9.00 for a million accounts fits in 63 bits.
	opening = 100_000_000_000
	// rowsOfBatch is the number of ids per batch number.
	rowsOfBatch = 1 << 14
	// batchesOfBlock is the number of batch numbers reserved at once.
	batchesOfBlock = 1000
	seed           = 20_261_121
)

func newJournal(tenant int32, accounts, entries int) *journal {
	return &journal{tenant: tenant, accounts: accounts, transfers: max(accounts+1, entries/2),
		began: time.Now().Add(-24 * time.Hour).Truncate(time.Second)}
}

// load copies the journal into the database. It creates keys and indexes afterwards, which is ten times as fast.
func (j *journal) load(ctx context.Context, conn *pgx.Conn, dsn string) error {
	if _, err := conn.Exec(ctx, sql("asset"), j.tenant, load.Asset, load.Scale); err != nil {
		return err
	}
	indexes, err := readIndexes(ctx, conn)
	if err != nil {
		return err
	}
	if err := execAll(ctx, conn, indexes.drop); err != nil {
		return err
	}
	// The trigger would keep all entries in memory; verifyAll checks them instead.
	if err := execAll(ctx, conn, []string{"set session_replication_role = replica",
		"set maintenance_work_mem = '512MB'"}); err != nil {
		return err
	}
	if err := j.copyAll(ctx, conn, dsn); err != nil {
		return err
	}
	if err := execAll(ctx, conn, []string{"reset session_replication_role"}); err != nil {
		return err
	}
	return execAll(ctx, conn, indexes.create)
}

// reserve reserves ids that the server will not issue.
func (j *journal) reserve(ctx context.Context, conn *pgx.Conn) error {
	block := func(rows int) (first int64, err error) {
		for reserved := 0; reserved < rows && err == nil; reserved += batchesOfBlock * rowsOfBatch {
			var batch int64
			if err = conn.QueryRow(ctx, sql("ids_reserve")).Scan(&batch); reserved == 0 {
				first = batch * rowsOfBatch // further blocks are adjacent: no other process reserves any
			}
		}
		return first, err
	}
	var err error
	if j.firstAccount, err = block(j.accounts + 2); err != nil {
		return err
	}
	j.firstTransfer, err = block(j.transfers)
	return err
}

type indexStatements struct{ drop, create []string }

func readIndexes(ctx context.Context, conn *pgx.Conn) (s indexStatements, err error) {
	rows, err := conn.Query(ctx, sql("indexes"))
	if err != nil {
		return s, err
	}
	var drop, create string
	_, err = pgx.ForEachRow(rows, []any{&drop, &create}, func() error {
		s.drop, s.create = append(s.drop, drop), append(s.create, create)
		return nil
	})
	return s, err
}

func execAll(ctx context.Context, conn *pgx.Conn, statements []string) error {
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// copyAll copies the two big tables concurrently, and the accounts once their entries are known.
func (j *journal) copyAll(ctx context.Context, conn *pgx.Conn, dsn string) error {
	other, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer other.Close(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() {
		done <- errors.Join(copyIn(ctx, other, "copy_batches", j.writeBatches),
			copyIn(ctx, other, "copy_transfers", j.writeTransfers))
	}()
	err = copyIn(ctx, conn.PgConn(), "copy_entries", j.writeEntries)
	if err = errors.Join(err, <-done); err != nil {
		return err
	}
	if err := copyIn(ctx, conn.PgConn(), "copy_accounts", j.writeAccounts); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, sql("audit_accounts"), j.tenant); err != nil {
		return err
	}
	return copyIn(ctx, conn.PgConn(), "copy_details", j.writeDetails)
}

// copyIn feeds a COPY in text format with hand-written encoding: values through interfaces take three times as long.
func copyIn(ctx context.Context, conn *pgconn.PgConn, statement string, write func(*row)) error {
	r, w := io.Pipe()
	go func() {
		buffered := &row{w: bufio.NewWriterSize(w, 256<<10)}
		write(buffered)
		_ = w.CloseWithError(buffered.w.Flush()) // a flush error has already reached the reader
	}()
	_, err := conn.CopyFrom(ctx, r, sql(statement))
	_ = r.CloseWithError(err) // ends the writer if the copy ended early
	return err
}

// row writes COPY's text format. Write errors surface at the flush.
type row struct {
	w    *bufio.Writer
	line []byte
}

func (r *row) number(n int64) *row { r.line = append(strconv.AppendInt(r.line, n, 10), '\t'); return r }

func (r *row) text(s string) *row { r.line = append(append(r.line, s...), '\t'); return r }

func (r *row) end() {
	r.line[len(r.line)-1] = '\n'
	_, _ = r.w.Write(r.line)
	r.line = r.line[:0]
}

// each iterates over all transfers, deterministically.
func (j *journal) each(transfer func(i, from, to int, amount int64)) {
	random := rand.New(rand.NewPCG(seed, seed))
	world := j.accounts + 1
	for i := range j.transfers {
		if i <= j.accounts {
			transfer(i, world, i, opening)
			continue
		}
		from, to := random.IntN(j.accounts), random.IntN(j.accounts-1)
		if to >= from {
			to++
		}
		transfer(i, from, to, 100+random.Int64N(900))
	}
}

// at is the time of a row's batch: one batch per second. Accounts were created the day before.
func (j *journal) at(first int64, i int) string {
	at := j.began.Add(time.Duration(i/rowsOfBatch) * time.Second)
	if first == j.firstAccount {
		at = at.Add(-24 * time.Hour)
	}
	return at.UTC().Format("2006-01-02 15:04:05Z07:00")
}

func (j *journal) writeBatches(r *row) {
	for _, rows := range []struct {
		first int64
		count int
	}{{j.firstAccount, j.accounts + 2}, {j.firstTransfer, j.transfers}} {
		for i := 0; i < rows.count; i += rowsOfBatch {
			r.number((rows.first + int64(i)) / rowsOfBatch).text(j.at(rows.first, i))
			r.number(int64(min(rowsOfBatch, rows.count-i))).text(tenantName).end()
		}
	}
}

func (j *journal) writeTransfers(r *row) {
	at := ""
	j.each(func(i, _, _ int, _ int64) {
		if i%rowsOfBatch == 0 {
			at = j.at(j.firstTransfer, i)
		}
		r.number(int64(j.tenant)).number(j.firstTransfer + int64(i)).text("load-" +
			strconv.Itoa(i)).text("transfer").text(at)
		r.text(tenantName).text("load").end()
	})
}

func (j *journal) writeEntries(r *row) {
	j.balances, j.versions = make([]int64, j.accounts+2), make([]int64, j.accounts+2)
	at := ""
	entry := func(i, account int, amount int64) {
		before := j.balances[account]
		j.balances[account] += amount
		j.versions[account]++
		r.number(int64(j.tenant)).number(j.firstAccount +
			int64(account)).number(j.versions[account]).number(j.firstTransfer + int64(i))
		r.text(at).text("0").text(load.Asset).number(amount).number(before).number(j.balances[account]).end()
	}
	j.each(func(i, from, to int, amount int64) {
		if i%rowsOfBatch == 0 {
			at = j.at(j.firstTransfer, i)
		}
		entry(i, from, -amount)
		entry(i, to, amount)
	})
}

func (j *journal) writeAccounts(r *row) {
	last := make([]int32, j.accounts+2)
	j.each(func(i, from, to int, _ int64) { last[from], last[to] = int32(i), int32(i) })
	for a := range j.accounts + 2 {
		code, kind, least := load.Code(a), "liability", "0"
		if a == j.accounts+1 {
			code, kind, least = load.World, "equity", `\N`
		}
		r.number(int64(j.tenant)).number(j.firstAccount +
			int64(a)).text(code).text(load.Asset).number(load.Scale).text(kind).text("open")
		r.number(j.balances[a]).text("0").text(least).number(j.versions[a]).text(j.at(j.firstTransfer,
			int(last[a]))).end()
	}
}

func (j *journal) writeDetails(r *row) {
	for a := range j.accounts + 2 {
		r.number(int64(j.tenant)).number(j.firstAccount + int64(a)).text(j.at(j.firstAccount, a)).text("load").end()
	}
}
