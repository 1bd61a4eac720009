package commit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Two servers and psql sessions lock each other's rows, backends are killed, statements are cancelled, and calls are
// cancelled at any moment. Each command takes effect once, or not at all if its caller got an error that says so. Both
// servers drain.
func TestCommandsForHeldRowsRunOnceDespiteKills(t *testing.T) {
	t.Parallel()
	const n, calls = 12, 800
	w := newWorld(t, n)
	engines := []*toyEngine{w.engine(), w.engine()}
	ctx, stop := context.WithCancel(context.Background())
	var nemesis sync.WaitGroup
	for range 3 { // psql
		nemesis.Go(func() {
			for ctx.Err() == nil {
				end := w.holder("select from toy_counters where id = $1 for update", fmt.Sprint("c", rand.N(n)))
				<-time.After(rand.N(600 * time.Millisecond))
				end()
			}
		})
	}
	nemesis.Go(func() {
		for ctx.Err() == nil {
			<-time.After(rand.N(200 * time.Millisecond))
			w.int(`select count(case when random() < 0.5 then pg_terminate_backend(pid) else pg_cancel_backend(pid) end)
				from (select pid from pg_stat_activity where usename <> current_user and datname = current_database()
					order by random() limit 1) x`)
		}
	})
	told := make([]string, calls)
	each(40, func(k int) error {
		for i := k; i < calls; i += 40 {
			one := add(fmt.Sprint("c", rand.N(n)), 1).labelled(fmt.Sprint("i", i))
			if i%7 == 0 {
				one.onNeed = func(*toyTx) { panic("in Need") }
			}
			s := keyed(fmt.Sprint("k", i), &toyPair{one, add(fmt.Sprint("c", rand.N(n)), 1)})
			s.DryRun = i%31 == 0
			call, cancel := context.WithTimeout(ctx, time.Duration(50+rand.N(4000))*time.Millisecond)
			_, err := engines[i%2].Do(call, s)
			told[i] = reason(err)
			cancel()
		}
		return nil
	})
	stop()
	nemesis.Wait()
	for _, e := range engines {
		e.mustBeEmpty(t)
		if left := e.blocked.waiting(); left > 0 {
			t.Errorf("%d commands are left", left)
		}
	}
	got := map[string]int{}
	for i, r := range told {
		got[r]++
		want, ran := int64(0), w.int("select count(*) from toy_log where label = $1", fmt.Sprint("i", i))
		if r == "ok" && i%31 != 0 {
			want = 1
		}
		if ran != want && !(r == "OUTCOME_UNKNOWN" && ran == 1) {
			t.Errorf("%d: answered %s, ran %d times", i, r, ran)
		}
	}
	t.Log(got)
}
