package ids

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// UUID is one of version 7 (RFC 9562): 48 bits of milliseconds since 1970, a counter of 26 bits, which makes
// UUIDs of one process grow also within a millisecond (method 1 of section 6.2), and 48 random bits.
type UUID [16]byte

const (
	counterBits = 26
	counterMax  = 1<<counterBits - 1
)

// uuids is where the last UUID stood.
type uuids struct {
	ms      int64
	counter uint32
}

// step moves on to the next place: a millisecond begins at a random count below the half, so that there is
// room above it. A clock that goes back stays where it was.
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

// UUIDs makes n UUIDs that grow, after all that this Generator made before. They need no worker number, and
// so no database: their randomness makes them unique.
func (g *Generator) UUIDs(n int) []UUID {
	noise := make([]byte, 10*n)
	_, _ = rand.Read(noise) // never fails
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

// Time is when it was made, to the millisecond.
func (id UUID) Time() time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:]) >> 16)).UTC()
}

// parseUUID reads 36 characters, in upper or lower case.
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
