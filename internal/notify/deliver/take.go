package deliver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// maxLapsed is how many expired leases a message may have in addition to its attempts. With more, the message itself
// may crash the processes.
const maxLapsed = 5

// take leases messages of the picked queues, reads their contents and queues them.
func (o *poller) take(ctx context.Context, picks []pick) error {
	p := o.pool
	ctx, cancel := context.WithTimeout(ctx, p.Lease/3)
	defer cancel()
	begun := time.Now()
	rows, now, err := o.rows(ctx, picks)
	if err != nil {
		o.giveBack(picks)
		return err
	}
	o.advance(picks, rows, now)
	jobs := make([]*job, len(rows))
	for i := range rows {
		jobs[i] = p.newJob(&rows[i], now, begun)
		if rows[i].Lapsed {
			p.Metrics.lapsed(jobs[i].Channel)
		}
		picks[rows[i].N-1].room--
	}
	o.giveBack(picks)
	found, err := o.contents(ctx, picks, rows, jobs)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, j := range jobs {
		p.lanes[j.Channel].resize(j.Tenant, assumed-picks[rows[i].N-1].each)
		if r := p.unsendable(&rows[i], j, found[i], err); r != nil {
			j.size = assumed
			p.write.put(r)
			continue
		}
		p.accept(j)
	}
	return err
}

func (o *poller) rows(ctx context.Context, picks []pick) (rows []db.QueueTakeRow, now time.Time, err error) {
	arg := db.QueueTakeParams{Holder: o.pool.Instance, LeaseS: o.pool.Lease.Seconds()}
	for _, k := range picks {
		arg.Tenants, arg.Channels = append(arg.Tenants, k.tenant), append(arg.Channels, string(k.channel))
		arg.Priorities, arg.Since, arg.Most = append(arg.Priorities, int32(k.priority)), append(arg.Since, k.since),
			append(arg.Most, int32(k.room))
	}
	now, err = o.pool.transact(pg.ForTenants(ctx, arg.Tenants...),
		func(d db.DBTX) (err error) { rows, err = q.QueueTake(ctx, d, arg); return err })
	return rows, now, err
}

// newJob returns the job of a row. The lease is counted from before the statement began.
func (p *Pool) newJob(row *db.QueueTakeRow, now, begun time.Time) *job {
	s := &send.Job{
		Message: send.Message{Tenant: row.TenantID, ID: row.MessageID, Channel: send.Channel(row.Channel),
			Attempt: int(row.Attempts),
			Park:    row.OnUnknown != "resend", Unsure: row.Unsure},
		Fence: row.Fence, Until: begun.Add(p.Lease), Priority: row.Priority, MaxAttempts: int(row.MaxAttempts),
		GiveUpAt: row.GiveUpAt,
		Month:    row.Month.Time, ContentsUntil: row.ContentsUntil.Time, Never: row.OnUnknown == "never",
	}
	if row.Provider != nil {
		s.LastProvider = *row.Provider
	}
	// The crashed process may have asked the first provider; any other one would have been recorded.
	if row.Lapsed && !s.Park && !s.Unsure {
		s.LastProvider, s.Unsure = "", true
	}
	return &job{Job: s, prevState: row.State, dueSince: begun.Add(row.DueAt.Sub(now))}
}

// unsendable returns the result of a message that cannot be sent, or nil.
func (p *Pool) unsendable(row *db.QueueTakeRow, j *job, c contents, err error) *result {
	switch {
	case j.prevState == sending:
		return &result{job: j, state: unknown, kind: unknown, code: "lapsed",
			text: "the lease of the process that was sending it expired", provider: j.LastProvider,
			unsure: j.Unsure}
	case row.GivenUp:
		return j.giveUp("expired", "it was not sent within its give_up_after")
	case j.Attempt > j.MaxAttempts+maxLapsed:
		return j.giveUp("lapsed", "its lease expired too often")
	case err != nil, c == noRoom:
		return j.giveBack()
	case c == gone:
		return j.giveUp("contents_gone", "its content was deleted or cannot be read")
	}
	return nil
}

// contents is the state of a message's content in memory.
type contents int

const (
	gone   contents = iota
	noRoom          // no room for it now
	known
)

// minRead is the number of bytes to read in any case. No message is larger.
const minRead = 1 << 20

// contents reads the contents of messages by partition, up to the reserved bytes: contents may be larger than assumed.
func (o *poller) contents(ctx context.Context, picks []pick, rows []db.QueueTakeRow,
	jobs []*job) (found []contents, err error) {
	found = make([]contents, len(rows))
	days := make(map[time.Time][]int)
	tenants := make([]int32, len(rows))
	for i := range rows {
		tenants[i] = rows[i].TenantID
		day := rows[i].ContentsUntil.Time
		days[day] = append(days[day], i)
	}
	var reads []func(db.DBTX) error
	for day, all := range days {
		arg := db.ContentsReadParams{ContentsUntil: pgtype.Date{Time: day, Valid: true}}
		for _, i := range all {
			arg.Tenants, arg.MessageIds = append(arg.Tenants, rows[i].TenantID),
				append(arg.MessageIds, rows[i].MessageID)
			arg.MostBytes += picks[rows[i].N-1].each
		}
		arg.MostBytes = max(arg.MostBytes, minRead)
		reads = append(reads, func(d db.DBTX) error {
			texts, err := q.ContentsRead(ctx, d, arg)
			for _, t := range texts {
				i := all[t.N-1]
				jobs[i].Recipient = t.Recipient
				if len(t.Content) == 0 {
					found[i] = noRoom
				} else if content, err := send.ReadContent(o.pool.Secret, jobs[i].Tenant, jobs[i].ID,
					t.Content); err == nil {
					jobs[i].Content, found[i] = content, known
				}
			}
			return err
		})
	}
	if len(reads) == 0 {
		return found, nil
	}
	_, err = o.pool.transact(pg.ForTenants(ctx, tenants...), reads...)
	return found, err
}
