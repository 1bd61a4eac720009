package flow_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// nemesis runs two servers on one database. Connections break at any byte, backends are terminated, and other
// transactions hold and change rows.
type nemesis struct {
	*testing.T
	super   *pgxpool.Pool
	engines [2]*flow.Engine
	cutters [2]*cutter
	began   time.Time

	mu    sync.Mutex
	ends  map[string]nemesisEnd
	begun map[string]time.Time // first call of a change
	ended map[string]time.Time // its definite answer
	again int                  // calls without a definite answer
}

// nemesisEnd is a definite answer.
type nemesisEnd struct{ kind, answer string }

// The attack lasts nemesisFor, or longer on a slow machine until enough failures have occurred, but at most
// nemesisTimeout.
const (
	nemesisFor     = 8 * time.Second
	nemesisTimeout = 3 * time.Minute
)

// Acknowledged changes have one effect, refused changes have none, repeats have the same answer, and no refusal names a
// balance that the account never had.
func TestNothingIsLostOrDuplicatedWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := &nemesis{T: t, super: pgtest.Pool(t, db.SuperDSN), ends: map[string]nemesisEnd{},
		begun: map[string]time.Time{}, ended: map[string]time.Time{}}
	for i := range n.engines {
		n.cutters[i] = newCutter(t, db.AllDSN)
		pool, err := pg.Open(t.Context(), n.cutters[i].dsn, 8)
		if err != nil {
			t.Fatal(err)
		}
		n.engines[i] = flow.NewEngine(pool, fmt.Sprint(i), nil, nil)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			if err := n.engines[i].Drain(ctx); err != nil {
				t.Error(err)
			}
			pool.Close()
		})
	}
	direct := engine(t, db)
	world(t, direct, 8)
	for i := range 8 {
		must[*ledger.Transfer](t, direct,
			submission(flow.Submission{Command: flow.Ledger(transfer(fmt.Sprint("fund", i), "world", user(i), "20"))}))
	}
	n.began = time.Now()
	var wg sync.WaitGroup
	for c := range 32 {
		wg.Go(func() { n.call(c) })
	}
	wg.Go(n.attack)
	wg.Wait()
	n.judge()
}

// goesOn reports whether the attack continues.
func (n *nemesis) goesOn() bool {
	lasted := time.Since(n.began)
	if lasted < nemesisFor || lasted > nemesisTimeout {
		return lasted < nemesisFor
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	kinds := map[string]int{}
	for _, end := range n.ends {
		kinds[end.kind]++
	}
	return kinds["ok"] < 150 || kinds["refused INSUFFICIENT_FUNDS"] < 150 || n.again == 0
}

// call makes changes. It retries each until there is a definite answer, and then repeats it twice.
func (n *nemesis) call(caller int) {
	for i := 0; n.goesOn(); i++ {
		name := fmt.Sprintf("%d-%d", caller, i)
		command := n.command(name, fmt.Sprintf("%d-%d", caller, max(0, i-1-rand.IntN(5))))
		begun := time.Now()
		end := n.until(command, name)
		ended := time.Now()
		if strings.Contains(end.kind, "NOT_FOUND") { // not recorded, so the next answer may differ
			continue
		}
		for range 2 {
			if again := n.until(command, name); again != end {
				n.Errorf("%s ended %v, and then %v", name, end, again)
			}
		}
		n.mu.Lock()
		n.ends[name], n.begun[name], n.ended[name] = end, begun, ended
		n.mu.Unlock()
	}
}

// command returns a function that returns the same change on each call.
func (n *nemesis) command(name, of string) func() commit.Command[*ledger.Tx] {
	from, to, amount := rand.IntN(8), rand.IntN(8), strconv.Itoa(1+rand.IntN(9))
	if from == to {
		to++
	}
	kind, life := rand.IntN(10), time.Duration(20+rand.IntN(3000))*time.Millisecond
	return func() commit.Command[*ledger.Tx] {
		switch {
		case kind < 6:
			return transfer(name, user(from), user(to), amount)
		case kind < 8:
			return hold(name, user(from), user(to), amount, life)
		case kind < 9:
			return capture(name, of, "1")
		}
		return &ledger.ReverseCommand{Caller: caller,
			ReverseParams: ledger.ReverseParams{TransferBizNo: of, BizNo: name}}
	}
}

func (n *nemesis) until(command func() commit.Command[*ledger.Tx], key string) nemesisEnd {
	for {
		if end, definite := n.try(command(), key); definite {
			return end
		}
		n.mu.Lock()
		n.again++
		n.mu.Unlock()
	}
}

func (n *nemesis) try(c commit.Command[*ledger.Tx], key string) (end nemesisEnd, definite bool) {
	w := submission(flow.Submission{Command: flow.Ledger(c)})
	w.Key = &commit.Key{Principal: "p", Operation: "o", Key: key, Fingerprint: make([]byte, commit.FingerprintSize),
		Life: time.Hour}
	w.Encode = func(a any) ([]byte, error) { return []byte(idOf(a)), nil }
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+rand.IntN(3000))*time.Millisecond)
	defer cancel()
	out, err := n.engines[rand.IntN(len(n.engines))].Do(ctx, w)
	switch f := fault.Of(err); {
	case f != nil && (f.Reason.Class == fault.Refusal || f.Reason.Class == fault.BadRequest):
		return nemesisEnd{"refused " + f.Reason.Name, ""}, true
	case err != nil:
		return nemesisEnd{}, false
	case out.Recorded != nil:
		return nemesisEnd{"ok", string(out.Recorded)}, true
	}
	return nemesisEnd{"ok", idOf(out.Answer)}, true
}

func idOf(a any) string {
	switch a := a.(type) {
	case *ledger.Transfer:
		return fmt.Sprint(a.ID)
	case *ledger.Hold:
		return fmt.Sprint(a.ID)
	case ledger.Capture:
		return fmt.Sprint(a.Transfer.ID)
	}
	return fmt.Sprintf("%T", a)
}

// attack causes a failure ten times a second. It ignores its own errors, because its sessions are terminated too.
func (n *nemesis) attack() {
	for n.goesOn() {
		<-time.After(time.Duration(rand.IntN(120)) * time.Millisecond)
		p := n.cutters[rand.IntN(len(n.cutters))]
		switch rand.IntN(7) {
		case 0:
			p.cut(1)
		case 1, 2:
			p.cut(0.3)
		case 3:
			p.stall.Store(time.Now().Add(time.Duration(rand.IntN(300)) * time.Millisecond).UnixNano())
		case 4:
			n.exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
				and pid <> pg_backend_pid()
				and usename <> 'postgres' and random() < 0.3`)
		case 5:
			n.exec("update ledger_accounts set state = case state when 'open' then 'frozen' else 'open' end "+
				"where code = $1", user(rand.IntN(8)))
			<-time.After(30 * time.Millisecond)
			n.exec("update ledger_accounts set state = 'open' where state = 'frozen'")
		case 6:
			if tx, err := n.super.Begin(context.Background()); err == nil {
				_, _ = tx.Exec(context.Background(), "select from ledger_accounts where code = $1 for update",
					user(rand.IntN(8)))
				<-time.After(time.Duration(rand.IntN(250)) * time.Millisecond)
				_ = tx.Rollback(context.Background())
			}
		}
	}
}

func (n *nemesis) exec(sql string, args ...any) {
	_, _ = n.super.Exec(context.Background(), sql, args...)
}

// judge compares the answers with the journal.
func (n *nemesis) judge() {
	rows, err := n.super.Query(context.Background(),
		"select biz_no, transfer_id::text from ledger_transfers union all select biz_no, hold_id::text "+
			"from ledger_holds")
	if err != nil {
		n.Fatal(err)
	}
	there := map[string]string{}
	var name, id string
	if _, err := pgx.ForEachRow(rows, []any{&name, &id}, func() error {
		if there[name] != "" {
			n.Errorf("%s is there twice", name)
		}
		there[name] = id
		return nil
	}); err != nil {
		n.Fatal(err)
	}
	kinds := map[string]int{}
	for name, end := range n.ends {
		kinds[end.kind]++
		if there[name] != end.answer {
			n.Errorf("%s ended %v, there is %q", name, end, there[name])
		}
	}
	n.judgeRefusals()
	n.Logf("%v; %d calls had no definite answer", kinds, n.again)
	if kinds["ok"] < 100 || n.again == 0 {
		n.Error("it tried too little")
	}
}

// judgeRefusals requires for every recorded refusal an earlier entry after which the account had the balance that the
// refusal names. The next entry must have a later time, or its change must not have been answered before the first call
// of the refused one: a batch reads the clock before it locks, so an entry of the other server may have an earlier time
// than a refusal that committed before it.
func (n *nemesis) judgeRefusals() {
	rows, err := n.super.Query(context.Background(), `
		with refusal as (
			select k.key, k.created_at, a.account_id, (k.j#>>'{metadata,balance}')::numeric * 100 as balance
			from (select key, created_at, convert_from(answer, 'UTF8')::jsonb as j from commit_keys where refused) k
			join ledger_accounts a on a.code = k.j#>>'{metadata,account}'
			where k.j#>>'{metadata,balance}' is not null
		)
		select r.key, array(
			select case when next.recorded_at < r.created_at then t.biz_no else '' end
			from ledger_entries e
			left join ledger_entries next on next.account_id = e.account_id and next.version = e.version + 1
			left join ledger_transfers t on t.transfer_id = next.transfer_id
			where e.account_id = r.account_id and e.balance_after = r.balance and e.recorded_at <= r.created_at
		) as next
		from refusal r`)
	if err != nil {
		n.Fatal(err)
	}
	var key string
	var next []string // for each matching entry: the biz_no of a next entry with an earlier time, or ""
	refusals := 0
	if _, err := pgx.ForEachRow(rows, []any{&key, &next}, func() error {
		refusals++
		if !slices.ContainsFunc(next, func(name string) bool {
			return name == "" || n.ended[name].IsZero() || n.ended[name].After(n.begun[key])
		}) {
			n.Errorf("%s was refused with a balance that the account never had, or no longer had at the first call",
				key)
		}
		return nil
	}); err != nil {
		n.Fatal(err)
	}
	if refusals < 100 {
		n.Errorf("%d refusals name a balance", refusals)
	}
}

// cutter is a proxy between a pool and Postgres that forwards fragments, stalls, and cuts connections.
type cutter struct {
	dsn, network, address string

	mu    sync.Mutex
	conns map[net.Conn]bool
	stall atomic.Int64 // until, in Unix nanoseconds
}

func newCutter(t *testing.T, dsn string) *cutter {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := &cutter{conns: map[net.Conn]bool{}}
	p.network, p.address = pgconn.NetworkAddress(c.Host, c.Port)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); p.cut(1) })
	p.dsn = (&url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: l.Addr().String(),
		Path: "/" + c.Database, RawQuery: "sslmode=disable"}).String()
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.connect(client)
		}
	}()
	return p
}

func (p *cutter) connect(client net.Conn) {
	defer client.Close()
	first := make([]byte, 8)
	const cancelRequest = 80877102
	if _, err := io.ReadFull(client, first); err != nil || binary.BigEndian.Uint32(first[4:]) == cancelRequest {
		return
	}
	server, err := net.Dial(p.network, p.address)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client], p.conns[server] = true, true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, client)
		delete(p.conns, server)
		p.mu.Unlock()
	}()
	if _, err := server.Write(first); err != nil {
		return
	}
	go func() {
		defer client.Close()
		defer server.Close()
		p.pump(client, server)
	}()
	p.pump(server, client)
}

func (p *cutter) pump(to, from net.Conn) {
	data := make([]byte, 64<<10)
	for {
		n, err := from.Read(data)
		if err != nil {
			return
		}
		for d := p.stall.Load() - time.Now().UnixNano(); d > 0; d = p.stall.Load() - time.Now().UnixNano() {
			<-time.After(time.Duration(d))
		}
		if rand.IntN(300) == 0 { // forward a fragment, then cut
			_, _ = to.Write(data[:rand.IntN(n+1)])
			_ = to.Close()
			return
		}
		if _, err := to.Write(data[:n]); err != nil {
			return
		}
	}
}

// cut closes one end of some connections.
func (p *cutter) cut(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if rand.Float64() < share {
			_ = c.Close()
		}
	}
}
