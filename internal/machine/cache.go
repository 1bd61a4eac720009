package machine

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
)

// maxCached limits the cache, in bytes of JSON.
const maxCached = 16 << 20

type hash = [sha256.Size]byte

// definitions are compiled definitions by their content. The version does not suffice: a restored database may have
// another definition under the same number. Eviction is harmless to a batch, which keeps what it has found.
type definitions struct {
	mu     sync.Mutex
	byHash map[hash]*compiled
	size   int
}

var cached = definitions{byHash: map[hash]*compiled{}}

func (d *definitions) get(h hash) *compiled {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byHash[h]
}

func (d *definitions) put(h hash, c *compiled) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byHash[h] != nil {
		return
	}
	for old, x := range d.byHash { // evicts in random order
		if d.size+len(c.text) <= maxCached {
			break
		}
		d.size -= len(x.text)
		delete(d.byHash, old)
	}
	d.byHash[h] = c
	d.size += len(c.text)
}

// load compiles a stored definition.
func (d *definitions) load(h hash, text []byte) (*compiled, error) {
	if c := d.get(h); c != nil {
		return c, nil
	}
	definition := new(Definition)
	if err := json.Unmarshal(text, definition); err != nil {
		return nil, fmt.Errorf("read a machine: %w", err)
	}
	c, problems := compile(definition, "")
	if len(problems) > 0 { // stored by another version of the server
		return nil, fmt.Errorf("read a machine: %s %s", problems[0].Path, problems[0].Description)
	}
	d.put(h, c)
	return c, nil
}
