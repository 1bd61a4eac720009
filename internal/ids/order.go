package ids

import (
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // so that zones do not depend on the machine

	"github.com/ledgerd/ledgerd/internal/fault"
)

const (
	maxPrefix  = 8
	dateLayout = "20060102"
)

// OrderForm is the format of order numbers.
type OrderForm struct {
	prefix string
	zone   *time.Location
}

// NewOrderForm makes a format from a prefix of up to 8 characters A-Z and 0-9 and an IANA time zone for dates,
// by default UTC. Returns fault FIELD_INVALID.
func NewOrderForm(prefix, zone string) (OrderForm, error) {
	if !goodPrefix(prefix) {
		return OrderForm{}, fault.FieldInvalid.New("prefix: must be at most %d characters, A-Z and 0-9", maxPrefix).
			WithField("prefix", "must be at most 8 characters, A-Z and 0-9")
	}
	location, err := zoneOf(zone)
	if err != nil {
		return OrderForm{}, fault.FieldInvalid.New("time_zone: there is no time zone %q; "+
			"use a name such as Asia/Shanghai", zone).
			WithField("time_zone", "must be the name of a time zone, such as Asia/Shanghai")
	}
	return OrderForm{prefix, location}, nil
}

func goodPrefix(s string) bool {
	return len(s) <= maxPrefix && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == ""
}

var zones sync.Map // name to *time.Location; bounded by the number of time zones

func zoneOf(name string) (*time.Location, error) {
	if known, ok := zones.Load(name); ok {
		return known.(*time.Location), nil
	}
	switch {
	case name == "Local": // depends on the machine
		return nil, errors.New("the machine's own zone has no name")
	case name != "" && path.Clean(name) != name: // alternative spellings would make the cache unbounded
		return nil, errors.New("a time zone name must be a clean path")
	}
	location, err := time.LoadLocation(name)
	if err == nil {
		zones.Store(name, location)
	}
	return location, err
}

// Write formats an id as an order number: prefix, date, and the id's text. The order number is unique because
// the id at its end is.
func (f OrderForm) Write(id ID) string {
	b := make([]byte, 0, maxPrefix+len(dateLayout)+textLength)
	b = append(b, f.prefix...)
	b = id.Time().In(f.zone).AppendFormat(b, dateLayout)
	return string(id.appendText(b))
}

// parseOrder parses an order number. The date must be the id's date in some time zone.
func parseOrder(s string) (prefix, date string, id ID, ok bool) {
	at := len(s) - textLength
	if at < len(dateLayout) {
		return "", "", 0, false
	}
	prefix, date = s[:at-len(dateLayout)], s[at-len(dateLayout):at]
	if id, ok = parseText(s[at:]); !ok || !goodPrefix(prefix) {
		return "", "", 0, false
	}
	west, east := id.Time().Add(-12*time.Hour).Format(dateLayout), id.Time().Add(14*time.Hour).Format(dateLayout)
	day, err := time.Parse(dateLayout, date)
	if err != nil || date < west || date > east || day.Format(dateLayout) != date {
		return "", "", 0, false
	}
	return prefix, date, id, true
}

// makeFor is how long OrderNo waits for an id: only a clock that goes back makes it wait.
const makeFor = time.Second

// OrderNo makes an order number without a prefix, with the date in UTC.
func (g *Generator) OrderNo() (string, error) {
	if one := g.take(1); one.n == 1 {
		g.metrics.snowflake.Inc()
		return OrderForm{zone: time.UTC}.Write(one.first.id(one.worker)), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), makeFor)
	defer cancel()
	made, err := g.Next(ctx, 1)
	if err != nil {
		return "", err
	}
	return OrderForm{zone: time.UTC}.Write(made[0]), nil
}
