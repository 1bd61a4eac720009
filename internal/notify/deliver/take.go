package deliver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// mostLapsed is how many attempts above its bound a message may have because of processes that had it and ended: more
// than that, and it may be what ends them.
const mostLapsed = 5

// take takes messages of the places picked, reads what they say, and queues them.
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
		if r := p.settle(&rows[i], j, found[i], err); r != nil {
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
	now, err = o.pool.steered(ctx, func(d db.DBTX) (err error) { rows, err = q.QueueTake(ctx, d, arg); return err })
	return rows, now, err
}

// newJob makes the job of a row. Its lease is counted from before the statement began.
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
	// whoever had it may have asked the first provider: another one would have been written down
	if row.Lapsed && !s.Park && !s.Unsure {
		s.LastProvider, s.Unsure = "", true
	}
	return &job{Job: s, was: row.State, begun: begun.Add(row.DueAt.Sub(now))}
}

// settle tells what becomes of a message that cannot be sent as it was found, or nil.
func (p *Pool) settle(row *db.QueueTakeRow, j *job, c contents, err error) *result {
	switch {
	case j.was == sending:
		return &result{job: j, state: unknown, kind: unknown, code: "lapsed",
			text: "the lease of the process that was sending it lapsed", provider: j.LastProvider,
			unsure: j.Unsure}
	case row.GivenUp:
		return j.end("expired", "it was not sent before its give_up_after")
	case j.Attempt > j.MaxAttempts+mostLapsed:
		return j.end("lapsed", "the leases of the processes that had it lapsed too often")
	case err != nil, c == tooMuch:
		return j.unsent()
	case c == gone:
		return j.end("contents_gone", "its content was deleted or cannot be read")
	}
	return nil
}

// contents tells whether it is known what a message says.
type contents int

const (
	gone    contents = iota
	tooMuch          // there is no room for it now
	known
)

// leastRead is what is read in any case, in bytes: no message has more.
const leastRead = 1 << 20

// contents reads what messages say, by the days of their partitions, as far as there is room: they may be greater than
// was thought when it was reserved.
func (o *poller) contents(ctx context.Context, picks []pick, rows []db.QueueTakeRow,
	jobs []*job) (found []contents, err error) {
	found = make([]contents, len(rows))
	days := make(map[time.Time][]int)
	for i := range rows {
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
		arg.MostBytes = max(arg.MostBytes, leastRead)
		reads = append(reads, func(d db.DBTX) error {
			texts, err := q.ContentsRead(ctx, d, arg)
			for _, t := range texts {
				i := all[t.N-1]
				jobs[i].Recipient = t.Recipient
				if len(t.Content) == 0 {
					found[i] = tooMuch
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
	_, err = o.pool.steered(ctx, reads...)
	return found, err
}
