package template

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// maxCached bounds the sources of the texts that are kept compiled, in bytes: compiled, they take some ten times as
// much.
const maxCached = 16 << 20

// cacheKey tells compiled texts apart by what they say: a version that another database has under the same number,
// such as one that was restored, is not taken for it.
type cacheKey struct {
	hash    [sha256.Size]byte
	channel send.Channel
	locale  string
}

// compiledTexts keeps what was compiled, in the process. What is asked for is found whatever is forgotten: Use holds
// on to it for the time of its batch.
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
	for old := range c.texts { // in no order, which forgets none for ever
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

// load compiles a definition as it is kept.
func (c *compiledTexts) load(k cacheKey, definition []byte) (*Compiled, error) {
	if t := c.get(k); t != nil {
		return t, nil
	}
	var d Definition
	if err := json.Unmarshal(definition, &d); err != nil {
		return nil, fmt.Errorf("read a template: %w", err)
	}
	t, problems := compile(&d, k.channel, k.locale)
	if len(problems) > 0 { // kept by another version of this program
		return nil, fmt.Errorf("read a template: %s %s", problems[0].Path, problems[0].Text)
	}
	c.put(k, t, len(definition))
	return t, nil
}
