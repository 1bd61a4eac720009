package template

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// maxCached limits the cache by the size of the sources, in bytes. Compiled templates take about ten times as much
// memory.
const maxCached = 16 << 20

// cacheKey identifies a compiled template by its content. A version number does not suffice: a restored database may
// have other content under the same number.
type cacheKey struct {
	hash    [sha256.Size]byte
	channel send.Channel
	locale  string
}

// compiledTexts caches compiled templates. Eviction is harmless to a batch: Use keeps a reference until the batch ends.
type compiledTexts struct {
	mu    sync.Mutex
	texts map[cacheKey]*Compiled
	sizes map[cacheKey]int
	size  int
}

var compiledCache = compiledTexts{texts: map[cacheKey]*Compiled{}, sizes: map[cacheKey]int{}}

func (c *compiledTexts) get(k cacheKey) *Compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.texts[k]
}

func (c *compiledTexts) put(k cacheKey, t *Compiled, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.texts[k] != nil || size > maxCached {
		return
	}
	for old := range c.texts { // evicts in random order
		if c.size+size <= maxCached {
			break
		}
		c.size -= c.sizes[old]
		delete(c.texts, old)
		delete(c.sizes, old)
	}
	c.texts[k], c.sizes[k] = t, size
	c.size += size
}

// load compiles a stored definition.
func (c *compiledTexts) load(k cacheKey, definition []byte) (*Compiled, error) {
	if t := c.get(k); t != nil {
		return t, nil
	}
	var d Definition
	if err := json.Unmarshal(definition, &d); err != nil {
		return nil, fmt.Errorf("read a template: %w", err)
	}
	t, problems := compile(&d, k.channel, k.locale)
	if len(problems) > 0 { // stored by another version of the server
		return nil, fmt.Errorf("read a template: %s %s", problems[0].Path, problems[0].Text)
	}
	c.put(k, t, len(definition))
	return t, nil
}
