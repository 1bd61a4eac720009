package template

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// maxDefinition limits a definition as JSON. As jsonb, with added spaces, the limit is 1 MiB.
const maxDefinition = 768 << 10

// maxLocales limits the locales of a template.
const maxLocales = 200

// PutCommand stores a new version of a template in one locale. If the content is unchanged the answer is a
// commit.Repeat. Its answer is a Put.
type PutCommand struct {
	commit.Caller
	Channel send.Channel
	Name    string
	Locale  string
	Default bool // make this the default locale; the first locale always is

	definition []byte
	hash       [sha256.Size]byte
	compiled   *Compiled
	row        *commit.Row[key, root]
	change     audit.Change
}

// Put is a stored version.
type Put struct {
	Version int32
	Locale  string
	Default bool // in the default locale
}

// NewPut validates a template and returns the command that stores it. Returns fault FIELD_INVALID.
func NewPut(c commit.Caller, channel send.Channel, name, locale string, d *Definition) (*PutCommand, error) {
	var p problems
	if !GoodName(name) {
		p.add("name", "must be a-z, 0-9, dots, - and _, at most %d characters", MaxName)
	}
	canonical, err := Locale(locale)
	if err != nil {
		p.add("locale", "is not a BCP 47 tag, such as en or zh-Hant-TW")
		canonical = "en"
	}
	compiled, more := compile(d, channel, canonical)
	for _, m := range more {
		if m.Path != "channel" {
			m.Path = "definition." + m.Path
		}
		p = append(p, m)
	}
	if len(p) > 0 {
		return nil, invalid(fault.FieldInvalid, p)
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("write a template: %w", err)
	}
	if len(text) > maxDefinition {
		return nil, invalid(fault.FieldInvalid,
			[]Problem{{"definition", fmt.Sprintf("has %d bytes when stored, and at most %d are allowed", len(text),
				maxDefinition)}})
	}
	return &PutCommand{Caller: c, Channel: channel, Name: name, Locale: canonical, definition: text,
		hash: sha256.Sum256(text), compiled: compiled}, nil
}

func (c *PutCommand) Need(tx *Tx) {
	c.row = tx.roots.Want(key{c.Tenant, string(c.Channel), c.Name})
}

// Apply stores the version.
func (c *PutCommand) Apply(tx *Tx) (any, error) {
	r := c.row.Value
	at := slices.Index(r.locales, c.Locale)
	gone, before := !r.deletedAt.IsZero(), r.settings()
	if c.row.Exists && !gone && at >= 0 && r.hashes[r.versions[at]] == c.hash &&
		(!c.Default || r.defaultLocale == c.Locale) {
		return commit.Repeat{First: Put{r.versions[at], c.Locale, r.defaultLocale == c.Locale}}, nil
	}
	if gone { // the template begins anew, but version numbers are never reused
		r.locales, r.versions, r.deletedAt, at = nil, nil, time.Time{}, -1
	}
	r.last++
	if at < 0 {
		if len(r.locales) == maxLocales {
			return nil, invalid(fault.FieldInvalid,
				[]Problem{{"locale", fmt.Sprintf("is one too many: a template can have at most %d locales",
					maxLocales)}})
		}
		r.locales, r.versions = append(slices.Clone(r.locales), c.Locale), append(slices.Clone(r.versions), r.last)
	} else {
		r.versions = slices.Clone(r.versions)
		r.versions[at] = r.last
	}
	if c.Default || len(r.locales) == 1 {
		r.defaultLocale = c.Locale
	}
	if r.hashes = maps.Clone(r.hashes); r.hashes == nil {
		r.hashes = map[int32][sha256.Size]byte{}
	}
	r.hashes[r.last], r.changedAt = c.hash, tx.Now
	*tx.Change(c.row) = r
	tx.versions = append(tx.versions, version{c.row.Key, r.last, c.Locale, c.definition, c.hash, c.compiled, c.Caller})
	c.change = changeOf(c.row.Key, before, r.settings())
	return Put{r.last, c.Locale, r.defaultLocale == c.Locale}, nil
}

// Changes returns the change of the template.
func (c *PutCommand) Changes() (commit.Caller, []audit.Change) {
	return c.Caller, []audit.Change{c.change}
}

// settings are the present versions of a template in the audit log.
type settings struct {
	Default  string           `json:"default_locale"`
	Versions map[string]int32 `json:"versions"` // by locale
}

// settings returns nil for a template that does not exist, or is deleted.
func (r *root) settings() any {
	if len(r.locales) == 0 || !r.deletedAt.IsZero() {
		return nil
	}
	s := settings{r.defaultLocale, map[string]int32{}}
	for i, locale := range r.locales {
		s.Versions[locale] = r.versions[i]
	}
	return s
}

func changeOf(k key, before, after any) audit.Change {
	return audit.Change{Kind: audit.Template, Name: k.channel + " " + k.name, Before: before, After: after}
}

// DeleteCommand deletes a template, or one of its locales, for new messages. Its versions can still be read. Deleting
// again is not an error. Its answer is a Deleted.
type DeleteCommand struct {
	commit.Caller
	Channel send.Channel
	Name    string
	Locale  string // empty: all

	row    *commit.Row[key, root]
	change audit.Change
}

// Changes returns the change of the template.
func (c *DeleteCommand) Changes() (commit.Caller, []audit.Change) {
	return c.Caller, []audit.Change{c.change}
}

// Deleted is the time of the deletion.
type Deleted struct{ At time.Time }

func (c *DeleteCommand) Need(tx *Tx) {
	c.row = tx.roots.Want(key{c.Tenant, string(c.Channel), c.Name})
}

// Apply deletes the template. Returns fault TEMPLATE_NOT_FOUND if it never existed, and FIELD_INVALID for the default
// locale while there are others.
func (c *DeleteCommand) Apply(tx *Tx) (any, error) {
	r := c.row.Value
	if !c.row.Exists {
		return nil, NotFound.New("there is no template %s for %s", c.Name, c.Channel).With("template", c.Name).
			WithField("name", "must be a template of this channel that exists")
	}
	if !r.deletedAt.IsZero() {
		return commit.Repeat{First: Deleted{r.deletedAt}}, nil
	}
	at, before := slices.Index(r.locales, c.Locale), r.settings()
	switch {
	case c.Locale == "" || at >= 0 && len(r.locales) == 1:
		r.deletedAt = tx.Now
	case at < 0:
		return commit.Repeat{First: Deleted{r.changedAt}}, nil
	case c.Locale == r.defaultLocale:
		return nil, invalid(fault.FieldInvalid,
			[]Problem{{"locale", "is the default: make another locale the default first"}})
	default:
		r.locales, r.versions = slices.Delete(slices.Clone(r.locales), at, at+1),
			slices.Delete(slices.Clone(r.versions), at, at+1)
	}
	r.changedAt = tx.Now
	*tx.Change(c.row) = r
	c.change = changeOf(c.row.Key, before, r.settings())
	return Deleted{tx.Now}, nil
}
