package access

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// The first calls of a key are looked up concurrently, and counted together.
func TestFirstCallsOfAKeyAreCountedTogether(t *testing.T) {
	t.Parallel()
	c := newIdentities()
	var looking, all sync.WaitGroup
	looking.Add(8)
	var admitted atomic.Int32
	for range 8 {
		all.Go(func() {
			id, err := c.find(t.Context(), [32]byte{}, func(context.Context) (Identity, error) {
				looking.Done()
				looking.Wait()
				return Identity{Calls: newCalls(0, 1)}, nil
			})
			if err == nil && id.Calls.Enter() == nil {
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n != 1 {
		t.Errorf("%d calls are in flight", n)
	}
}

// Other credentials do not make the server forget how many calls a key has in flight.
func TestCallsOfAKeyAreCountedBesideManyCredentials(t *testing.T) {
	t.Parallel()
	c := newIdentities()
	find := func(n uint32, id Identity) Identity {
		var sum [32]byte
		binary.LittleEndian.PutUint32(sum[:], n)
		found, err := c.find(t.Context(), sum, func(context.Context) (Identity, error) { return id, nil })
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	key := func() *Calls { return find(0, Identity{Calls: newCalls(0, 1)}).Calls }
	if err := key().Enter(); err != nil {
		t.Fatal(err)
	}
	for n := range uint32(2*maxKnown + 1) {
		find(n+1, Identity{})
	}
	if len(c.known) > maxKnown {
		t.Errorf("%d identities are kept", len(c.known))
	}
	if err := key().Enter(); err == nil {
		t.Error("a second call is in flight")
	}
	key().Leave()
	if err := key().Enter(); err != nil {
		t.Error(err)
	}
}

// A look-up that fails, or is cancelled by the caller, does not make the server forget the calls in flight either.
func TestCallsOfAKeyAreCountedBesideFailedLookups(t *testing.T) {
	t.Parallel()
	c := newIdentities()
	sum, found := [32]byte{}, Identity{Calls: newCalls(0, 1)}
	find := func(err error) (Identity, error) {
		return c.find(t.Context(), sum, func(context.Context) (Identity, error) { return found, err })
	}
	id, err := find(nil)
	if err == nil {
		err = id.Calls.Enter()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.known[sum].renew, c.known[sum].until = time.Time{}, time.Time{}
	if _, err := find(fault.NotRun.New("cancelled")); !fault.Is(err, fault.NotRun) {
		t.Errorf("an old identity after a failed look-up: %v", err)
	}
	found.Calls = newCalls(0, 1)
	if id, err = find(nil); err != nil || id.Calls.Enter() == nil {
		t.Errorf("a second call is in flight: %v", err)
	}
	c.known[sum].renew, c.known[sum].until = time.Time{}, time.Time{}
	if _, err := find(Unauthenticated.New("revoked")); !fault.Is(err, Unauthenticated) || len(c.known) != 0 {
		t.Errorf("a revoked key is remembered: %v", err)
	}
}
