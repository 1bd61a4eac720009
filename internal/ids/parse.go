package ids

import (
	"strconv"
	"time"
)

// Kind is a kind of id.
type Kind int

// The kinds.
const (
	Snowflake Kind = iota + 1 // a 64-bit ID
	UUIDv7
	OrderNo
)

// Parsed are the parts of an id.
type Parsed struct {
	Kind Kind
	Time time.Time
	ID   ID     // unset for UUIDs
	Text string // in canonical form
	// Prefix and Date are set for order numbers.
	Prefix, Date string
}

// Parse parses an id in any of its forms, which differ in length. A decimal ID has up to 19 digits but not 13:
// only ids from the first 40 minutes after Epoch have 13. Parse does not check whether the id was ever issued.
// Returns fault ID_INVALID.
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
	return Parsed{}, Invalid.New("id: is neither a snowflake (digits or 13 characters), nor a UUID of version 7, "+
		"nor an order number").
		WithField("id", "must be an id made by Generate")
}

func parseDecimal(s string) (ID, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	id := ID(n)
	return id, err == nil && n >= 0 && len(s) != textLength && id.String() == s // reject signs and leading zeros
}
