package code_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify/code"
)

// model is the specification of one recipient's codes. Its time advances in steps of ten seconds, so that the real
// clock's progress does not matter.
type model struct {
	now     time.Duration
	there   bool // the row exists
	open    bool
	digits  string // the code that verifies
	tries   int32
	tried   time.Duration // the last wrong try
	expires time.Duration
	sent    []time.Duration
	message bool // the last code has a message
	unsent  bool // the message will not arrive
	codes   []string
	wrong   []time.Duration
}

// lately returns the times within the last 24 hours.
func (m *model) lately(times []time.Duration) (list []time.Duration) {
	for _, at := range times {
		if at+24*time.Hour > m.now {
			list = append(list, at)
		}
	}
	return list
}

func (m *model) spent() bool { return len(m.lately(m.wrong)) >= code.MaxWrong }

// send returns the reason why a code is refused, or "".
func (m *model) send(digits string, suppress bool) (reason string) {
	if m.spent() {
		return "CODE_TRIES_SPENT"
	}
	if n := len(m.sent); n > 0 && m.now < m.sent[n-1]+code.DefaultInterval && !m.unsent {
		return "CODE_TOO_SOON"
	}
	if len(m.lately(m.sent)) >= code.DefaultDaily {
		return "CODE_TOO_MANY"
	}
	*m = model{now: m.now, there: true, open: !suppress, digits: digits, expires: m.now + code.DefaultLife,
		sent:    append(m.lately(m.sent), m.now),
		message: !suppress, codes: append(m.codes, digits), wrong: m.wrong}
	return ""
}

func (m *model) right(digits string) bool {
	return m.open && !(m.message && m.unsent) && digits == m.digits && m.tries < code.MaxTries && m.now < m.expires
}

// try returns the answer to a try. stays is false if its command fails.
func (m *model) try(digits string, stays bool) code.Verified {
	if m.right(digits) {
		if stays {
			m.open = false
		}
		return code.Verified{Valid: true, TriesLeft: code.MaxTries - m.tries}
	}
	if !m.there || m.now >= m.expires && (m.tries == 0 || m.now >= m.tried+code.MaxLife) {
		m.there, m.open, m.tries, m.expires = true, false, 0, m.now
	}
	if m.tries < code.MaxTries {
		m.tries++
		m.tried = m.now
		m.wrong = append(m.wrong, m.now)
	}
	return code.Verified{TriesLeft: code.MaxTries - m.tries}
}

// Model test: any sequence of operations follows the specification.
func TestCodesFollowTheirRules(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 2)
	n := 0
	codes, cleaner := code.Codes(), clean.Cleaner{Pool: d.pool, Metrics: clean.NewMetrics(nil)}
	rapid.Check(t, func(rt *rapid.T) {
		d.exec("delete from notify_codes")
		d.exec("delete from notify_counters")
		n++
		to := fmt.Sprintf("+86138%08d", n)
		m := &model{}
		pick := func(rt *rapid.T) string {
			if len(m.codes) > 0 && rapid.IntRange(0, 2).Draw(rt, "known") > 0 {
				return m.codes[len(m.codes)-1-min(rapid.IntRange(0, 3).Draw(rt, "older"), len(m.codes)-1)]
			}
			return "000000"
		}
		later := func(by time.Duration) {
			m.now += by
			d.later(by)
		}
		send := func(rt *rapid.T) {
			suppress := rapid.IntRange(0, 4).Draw(rt, "suppress") == 0
			digits := fmt.Sprint(100000 + rapid.IntRange(0, 899_999).Draw(rt, "digits"))
			c := request(to, digits)
			c.Suppress = suppress
			want, err := m.send(digits, suppress), d.send(c)
			if got := reasonOf(err); got != want {
				rt.Fatalf("send: %s, want %s: %v", got, want, err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"send": send,
			"send every minute": func(rt *rapid.T) {
				for range rapid.IntRange(2, 7).Draw(rt, "codes") {
					send(rt)
					later(time.Minute)
				}
			},
			"try": func(rt *rapid.T) {
				digits := pick(rt)
				if m.spent() {
					if !d.spent(try(to, digits)) {
						rt.Fatalf("%s: tried beyond the daily limit", digits)
					}
					return
				}
				want := m.try(digits, true)
				if got := d.verify(to, digits); got != want {
					rt.Fatalf("%s: %+v, want %+v", digits, got, want)
				}
			},
			"try beside what fails": func(rt *rapid.T) {
				digits, broke := pick(rt), rapid.SampledFrom(broken).Draw(rt, "failure")
				if m.spent() {
					broke = code.TriesSpent
				} else {
					m.try(digits, false)
				}
				if _, err := d.do(failing{flow.Code(try(to, digits)), broke.New("no")}); !fault.Is(err, broke) {
					rt.Fatal(err)
				}
			},
			"the message dies": func(rt *rapid.T) {
				if m.message {
					m.unsent = true
					d.exec(`update notify_queue set state = 'dead', due_at = null, holder = null, failure_code = 'x'
						where message_id = (select max(message_id) from notify_codes)`)
				}
			},
			"time passes": func(rt *rapid.T) {
				later(time.Duration(rapid.SampledFrom([]int{1, 2, 3, 6, 12, 24, 30, 180, 360 * 5}).Draw(rt,
					"by")) * 10 * time.Second)
			},
			"clean": func(rt *rapid.T) {
				if _, err := cleaner.Clean(t.Context(), &codes); err != nil {
					rt.Fatal(err)
				}
			},
		})
	})
}

func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	if f := fault.Of(err); f != nil {
		return f.Reason.Name
	}
	return err.Error()
}
