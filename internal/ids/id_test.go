package ids_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ids"
)

// at composes an id.
func at(t time.Time, worker, sequence int) ids.ID {
	return ids.ID(t.Sub(ids.Epoch).Milliseconds()<<22 | int64(worker)<<12 | int64(sequence))
}

var noon = time.Date(2026, 1, 15, 12, 0, 0, 123e6, time.UTC)

func TestIDHasItsParts(t *testing.T) {
	t.Parallel()
	for _, want := range []struct {
		time             time.Time
		worker, sequence int
	}{{ids.Epoch, 0, 0}, {noon, 0, 4095}, {noon, 1023, 0}, {noon, 512, 1}, {ids.Last, 1023, 4095}} {
		id := at(want.time, want.worker, want.sequence)
		if !id.Time().Equal(want.time) || id.Worker() != want.worker || id.Sequence() != want.sequence || id < 0 {
			t.Errorf("%d: %v %d %d, want %v", id, id.Time(), id.Worker(), id.Sequence(), want)
		}
	}
	if at(ids.Last, 1023, 4095) != math.MaxInt64 {
		t.Error("the last id is not the greatest number")
	}
	if got := ids.Last.Format(time.RFC3339Nano); got != "2094-09-07T15:47:35.551Z" {
		t.Errorf("the last millisecond is %s", got)
	}
}

func TestTextsSortLikeNumbersAndRoundTrip(t *testing.T) {
	t.Parallel()
	all := []ids.ID{0, 1, 31, 32, math.MaxInt64, math.MaxInt64 - 1, at(noon, 7, 9)}
	for range 10_000 {
		all = append(all, ids.ID(rand.Int64()))
	}
	slices.Sort(all)
	last := ""
	for i, id := range all {
		text := id.Text()
		if len(text) != 13 || strings.ContainsAny(text, "ILOU") || i > 0 && id > all[i-1] && text <= last {
			t.Fatalf("%d is %s, after %s", id, text, last)
		}
		last = text
		for _, form := range []string{text, strings.ToLower(text),
			strings.NewReplacer("1", "l", "0", "o").Replace(text)} {
			if p, err := ids.Parse(form); err != nil || p.ID != id || p.Kind != ids.Snowflake || p.Text != text ||
				!p.Time.Equal(id.Time()) {
				t.Fatalf("%s: %+v, %v; want %d", form, p, err, id)
			}
		}
		if form := id.String(); len(form) != 13 {
			if p, err := ids.Parse(form); err != nil || p.ID != id || p.Text != text {
				t.Fatalf("%s: %+v, %v", form, p, err)
			}
		}
	}
	if last != "7ZZZZZZZZZZZZ" {
		t.Errorf("the greatest is %s", last)
	}
}

func form(t *testing.T, prefix, zone string) ids.OrderForm {
	t.Helper()
	f, err := ids.NewOrderForm(prefix, zone)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOrderNumbersHaveTheDateOfTheirZone(t *testing.T) {
	t.Parallel()
	late := at(time.Date(2026, 1, 31, 20, 0, 0, 0, time.UTC), 3, 4)
	for _, x := range []struct{ prefix, zone, want string }{
		{"", "", "20260131"}, {"", "UTC", "20260131"}, {"ORD", "", "ORD20260131"}, {"ORD12345", "Asia/Shanghai",
			"ORD1234520260201"},
		{"A", "Pacific/Kiritimati", "A20260201"}, {"A", "Pacific/Pago_Pago", "A20260131"},
	} {
		no := form(t, x.prefix, x.zone).Write(late)
		if no != x.want+late.Text() || len(no) > 32 {
			t.Errorf("%+v: %s", x, no)
		}
		p, err := ids.Parse(no)
		if err != nil || p.Kind != ids.OrderNo || p.ID != late || p.Prefix != x.prefix || p.Prefix+p.Date != x.want ||
			p.Text != no {
			t.Errorf("%s: %+v, %v", no, p, err)
		}
	}
	for _, bad := range [][2]string{{"ord", ""}, {"ORD-", ""}, {"ORD123456", ""}, {"Ö", ""}, {"", "Mars/Olympus"},
		{"", "Local"}, {"", "../etc/passwd"}, {"", "/etc/localtime"},
		{"", "Asia//Shanghai"}, {"", "Asia/./Shanghai"}, {"", "./UTC"}, {"", "Asia/Shanghai/"}, {"", "."}} {
		if _, err := ids.NewOrderForm(bad[0], bad[1]); !fault.Is(err, fault.FieldInvalid) ||
			len(fault.Of(err).Fields) != 1 {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestInvalidIDsAreRefused(t *testing.T) {
	t.Parallel()
	text := at(noon, 7, 9).Text()
	uuid := "01941f29-7c00-7aaa-9bbb-0123456789ab"
	if p, err := ids.Parse(uuid); err != nil || p.Kind != ids.UUIDv7 {
		t.Fatal(p, err)
	}
	for _, bad := range []string{"", "-1", "+1", "01", "1.5", "1e3", " 1", "१", "9223372036854775808",
		"99999999999999999999",
		text + "0", text[1:] + "U", "8" + text[1:], text[:12] + "-", text[:12] + "\xff", text[:12],
		"20260115" + text + "X", "20260117" + text, "20260113" + text, "20261315" + text, "ord20260115" + text,
		"ABCDEFGHI20260115" + text, "2026-1-5" + text,
		strings.ReplaceAll(uuid, "-", ""), "{" + uuid + "}", strings.Replace(uuid, "-7aaa", "-4aaa", 1),
		strings.Replace(uuid, "-9bbb", "-1bbb", 1),
		strings.Replace(uuid, "0", "g", 1), strings.Replace(uuid, "-", "+", 1)} {
		if p, err := ids.Parse(bad); !fault.Is(err, ids.Invalid) || len(fault.Of(err).Fields) != 1 {
			t.Errorf("%q: %+v, %v", bad, p, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0", at(noon, 7, 9).Text(), at(noon, 7, 9).String(),
		"01941f29-7c00-7aaa-9bbb-0123456789ab", "ORD20260115" + at(noon, 7, 9).Text()} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ids.Parse(s)
		if err != nil {
			return
		}
		again, err := ids.Parse(p.Text)
		if err != nil || again != p {
			t.Errorf("%q is %+v, and its text %+v, %v", s, p, again, err)
		}
	})
}
