package ids

import (
	"strconv"
	"time"
)

// Kind is a kind of id.
type Kind int

// The kinds.
const (
	Snowflake Kind = iota + 1 // an ID
	UUIDv7
	OrderNo
)

// Parsed is what stands in an id.
type Parsed struct {
	Kind Kind
	Time time.Time
	ID   ID     // not of UUIDs
	Text string // as it is written here
	// Of order numbers.
	Prefix, Date string
}

// Parse reads an id in any of its forms, which differ in length: an ID in decimal has up to 19 digits but not
// 13, which no ID has that was made later than 40 minutes after Epoch. It does not know whether the id was
// ever given out. Returns fault ID_INVALID.
func Parse(s string) (Parsed, error) {
	if id, ok := parseText(s); ok {
		return Parsed{Kind: Snowflake, Time: id.Time(), ID: id, Text: id.Text()}, nil
	}
	if id, ok := parseDecimal(s); ok {
		return Parsed{Kind: Snowflake, Time: id.Time(), ID: id, Text: id.Text()}, nil
	}
	if id, ok := parseUUID(s); ok {
		return Parsed{Kind: UUIDv7, Time: id.Time(), Text: id.String()}, nil
	}
	if prefix, date, id, ok := parseOrder(s); ok {
		return Parsed{Kind: OrderNo, Time: id.Time(), ID: id, Text: prefix + date + id.Text(), Prefix: prefix,
			Date: date}, nil
	}
	return Parsed{}, Invalid.New("id: is neither a snowflake (digits or 13 characters), nor a UUID of version 7, nor an order number").
		WithField("id", "must be an id made by Generate")
}

func parseDecimal(s string) (ID, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	id := ID(n)
	return id, err == nil && n >= 0 && len(s) != textLength && id.String() == s // no sign, no zeros in front
}
