package notify_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestListsShowEveryMessageOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	reader := notify.NewReader(p.pool, &notify.Outbox{Master: master, Region: "CN"})
	ada := func(p *notify.Params) { p.Channel, p.Recipient = send.Email, "Ada@example.com" }
	want := map[string][]int64{}
	for i := range 25 {
		f := says(fmt.Sprint(i))
		m := &notify.Message{}
		if i%3 == 0 {
			m = p.mustSend(f, ada)
			want["email"], want["ada"] = append(want["email"], m.ID), append(want["ada"], m.ID)
		} else {
			m = p.mustSend(f)
		}
		want["all"] = append(want["all"], m.ID)
		switch i % 4 {
		case 0:
			sent(t, db, m.ID)
		case 1:
			change(t, db, "update notify_queue set state = 'dead', due_at = null, failure_code = $2 "+
				"where message_id = $1",
				m.ID, fmt.Sprint("c", i%3))
			want["dead"] = append(want["dead"], m.ID)
			if i%3 == 1 {
				want["c1"] = append(want["c1"], m.ID)
			}
		default:
			want["queued"] = append(want["queued"], m.ID)
		}
	}
	for name, f := range map[string]notify.Filter{"all": {}, "email": {Channel: send.Email},
		"ada":  {Channel: send.Email, Recipient: "ada@EXAMPLE.com"},
		"dead": {State: notify.Dead}, "c1": {State: notify.Dead, FailureCode: "c1"}, "queued": {State: notify.Queued},
		"none": {Channel: send.Push}} {
		for _, size := range []int{1, 2, 5, 100} {
			var got []int64
			token := ""
			for pages := 0; pages == 0 || token != ""; pages++ {
				page, next, err := reader.List(t.Context(), 1, f, size, token)
				if err != nil || len(page) > size || pages > 30 {
					t.Fatalf("%s: %d of %d, %v", name, len(page), size, err)
				}
				for _, m := range page {
					got = append(got, m.ID)
				}
				token = next
			}
			slices.Reverse(got)
			if !slices.Equal(got, want[name]) {
				t.Errorf("%s by %d: %v, want %v", name, size, got, want[name])
			}
		}
	}
	_, token, err := reader.List(t.Context(), 1, notify.Filter{}, 2, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := reader.List(t.Context(), 1, notify.Filter{Channel: send.SMS}, 2, token); !fault.Is(err,
		paging.TokenInvalid) {
		t.Errorf("page token of another list: %v", err)
	}
	if list, _, err := reader.List(t.Context(), 2, notify.Filter{}, 10, ""); err != nil || len(list) != 0 {
		t.Errorf("another tenant sees %d, %v", len(list), err)
	}
	if _, _, err := reader.List(t.Context(), 1, notify.Filter{Channel: send.Email, Recipient: "ada"}, 2,
		""); !fault.Is(err, fault.FieldInvalid) {
		t.Errorf("invalid recipient: %v", err)
	}
}

func TestDeadLettersAreGroupedByCode(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	reader := notify.NewReader(p.pool, &notify.Outbox{Master: master})
	last := map[string]int64{}
	for i, c := range []struct {
		state, code string
		channel     send.Channel
	}{{"dead", "refused", send.SMS}, {"dead", "refused", send.SMS}, {"dead", "refused", send.SMS}, {"dead", "timeout",
		send.SMS}, {"dead", "refused", send.Push}, {"dead", "refused", send.Push},
		{"unknown", "lost", send.SMS}, {"queued", "", send.SMS}} {
		m := p.mustSend(says(fmt.Sprint(i)), func(p *notify.Params) {
			if c.channel == send.Push {
				p.Channel, p.Recipient = send.Push, "token"
			}
		})
		if c.state == "queued" {
			continue
		}
		change(t, db, "update notify_queue set state = $2, due_at = null, failure_code = $3 where message_id = $1",
			m.ID,
			c.state, c.code)
		change(t, db, `insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, failure_code,
			failure_text, at, instance)
			select tenant_id, message_id, month, 1, 'dead', 1, failure_code, 'words of ' || message_id, now(), 'test'
			from notify_queue where message_id = $1`, m.ID)
		last[fmt.Sprint(c.state, c.code, c.channel)] = m.ID
	}
	for state, want := range map[string][]string{notify.Dead: {"refused sms 3", "refused push 2", "timeout sms 1"},
		notify.Unknown: {"lost sms 1"}} {
		groups, err := reader.DeadGroups(t.Context(), 1, state)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range groups {
			got = append(got, fmt.Sprint(g.FailureCode, " ", g.Channel, " ", g.Count))
			if id := last[fmt.Sprint(state, g.FailureCode, g.Channel)]; g.Example.ID != id ||
				g.FailureText != fmt.Sprint("words of ", id) {
				t.Errorf("%s %s: example %d, %q", g.FailureCode, g.Channel, g.Example.ID, g.FailureText)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
	}
	if groups, err := reader.DeadGroups(t.Context(), 2, notify.Dead); err != nil || len(groups) != 0 {
		t.Errorf("another tenant sees %d, %v", len(groups), err)
	}
}
