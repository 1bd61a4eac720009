package ids

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// UUID is a UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, a 26-bit counter that orders the UUIDs
// of one process within a millisecond (method 1 of section 6.2), and 48 random bits.
type UUID [16]byte

const (
	counterBits = 26
	counterMax  = 1<<counterBits - 1
)

// uuids is the state of the last UUID.
type uuids struct {
	ms      int64
	counter uint32
}

// step advances to the next state. A new millisecond starts at a random count in the lower half of the range,
// to leave room above. If the clock goes back, the millisecond stays.
func (u *uuids) step(ms int64, random uint32) {
	switch {
	case ms > u.ms:
		u.ms, u.counter = ms, random&(counterMax>>1)
	case u.counter < counterMax:
		u.counter++
	default:
		u.ms, u.counter = u.ms+1, random&(counterMax>>1)
	}
}

func (u *uuids) write(random [6]byte) (id UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(u.ms)<<16|7<<12|uint64(u.counter>>14))
	binary.BigEndian.PutUint16(id[8:], 0b10<<14|uint16(u.counter&(1<<14-1)))
	copy(id[10:], random[:])
	return id
}

// UUIDs returns n increasing UUIDs, greater than all earlier ones of this Generator. They need no worker number
// and no database: their random bits make them unique.
func (g *Generator) UUIDs(n int) []UUID {
	noise := make([]byte, 10*n)
	_, _ = rand.Read(noise) // never returns an error
	made := make([]UUID, n)
	g.mu.Lock()
	defer g.mu.Unlock()
	ms := g.clock.now().UnixMilli()
	for i := range made {
		at := noise[10*i:]
		g.uuids.step(ms, binary.BigEndian.Uint32(at))
		made[i] = g.uuids.write([6]byte(at[4:10]))
	}
	g.metrics.uuids.Add(float64(n))
	return made
}

func (id UUID) String() string {
	b := make([]byte, 0, 36)
	b = append(hex.AppendEncode(b, id[:4]), '-')
	b = append(hex.AppendEncode(b, id[4:6]), '-')
	b = append(hex.AppendEncode(b, id[6:8]), '-')
	b = append(hex.AppendEncode(b, id[8:10]), '-')
	return string(hex.AppendEncode(b, id[10:]))
}

// Time is the creation time, in milliseconds.
func (id UUID) Time() time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:]) >> 16)).UTC()
}

// parseUUID parses 36 characters, in either case.
func parseUUID(s string) (id UUID, ok bool) {
	if len(s) != 36 {
		return id, false
	}
	text := make([]byte, 0, 32)
	for i := range len(s) {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return id, false
			}
			continue
		}
		text = append(text, s[i])
	}
	_, err := hex.Decode(id[:], text)
	return id, err == nil && id[6]>>4 == 7 && id[8]>>6 == 0b10
}
