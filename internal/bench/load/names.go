package load

import (
	"fmt"
	"math/rand/v2"
)

// Asset is the asset of all transfers; Scale is its number of decimals.
const (
	Asset = "CNY"
	Scale = 2
)

// Code is an account's code. All codes have the same length, so that they can be overwritten in a prepared request.
func Code(number int) string { return fmt.Sprintf("acct:%07d", number) }

// World is the unbounded account that funds the others.
const World = "world"

// transfer has the variable parts of a transfer, as text of fixed width.
type transfer struct {
	bizNo    [18]byte
	from, to [12]byte
	amount   [4]byte // 1.00 to 9.99
	minor    [3]byte // in minor units
}

const hexDigits = "0123456789abcdef"

// maker makes one caller's transfers. Biz_nos begin with a counter, like order numbers that grow with time:
// neither random over the whole index nor strictly at its end.
type maker struct {
	spec   *Spec
	random *rand.Rand
	next   uint64
	t      transfer
}

func newMaker(spec *Spec, caller int) *maker {
	m := &maker{spec: spec, random: rand.New(rand.NewPCG(rand.Uint64(), uint64(caller)))}
	copy(m.t.bizNo[:], spec.Run)
	m.t.bizNo[4], m.t.bizNo[13] = '-', '-'
	putHex(m.t.bizNo[14:], uint64(caller))
	copy(m.t.from[:], Code(0))
	copy(m.t.to[:], Code(0))
	m.t.amount[1] = '.'
	return m
}

// make returns the next transfer; it is valid until the next call.
func (m *maker) make() *transfer {
	putHex(m.t.bizNo[5:13], m.next)
	m.next++
	from := m.random.IntN(m.spec.Accounts)
	to := m.random.IntN(m.spec.Accounts - 1)
	if to >= from {
		to++
	}
	putDecimal(m.t.from[5:], from*m.spec.Stride)
	if m.spec.Hot >= 0 {
		putDecimal(m.t.to[5:], m.spec.Hot)
	} else {
		putDecimal(m.t.to[5:], to*m.spec.Stride)
	}
	cents := 100 + m.random.IntN(900)
	putDecimal(m.t.minor[:], cents)
	m.t.amount[0] = m.t.minor[0]
	copy(m.t.amount[2:], m.t.minor[1:])
	return &m.t
}

func putHex(b []byte, n uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = hexDigits[n&15]
		n >>= 4
	}
}

func putDecimal(b []byte, n int) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
}
