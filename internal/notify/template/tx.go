package template

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template/internal/db"
)

// Tx holds the templates of one batch: those to be changed, and those that messages are rendered from.
type Tx struct {
	roots
	versions []version // created in this batch
	made     int       // len(versions) at Mark
	uses     []*Use
}

type roots = commit.Rows[key, root]

type key struct {
	tenant        int32
	channel, name string
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.channel, b.channel), cmp.Compare(a.name, b.name))
}

// root is a row of notify_templates: the present version of each locale. Slices and maps are never changed in place, so
// that Undo works.
type root struct {
	defaultLocale string
	last          int32
	locales       []string
	versions      []int32
	changedAt     time.Time
	deletedAt     time.Time
	hashes        map[int32][sha256.Size]byte // by version
}

type version struct {
	key
	version    int32
	locale     string
	definition []byte
	hash       [sha256.Size]byte
	compiled   *Compiled
	caller     commit.Caller
}

var (
	q     db.Queries
	table = commit.NewKeyOrder[key, root](compareKeys)
)

// NewTx returns an empty transaction.
func NewTx() *Tx { return &Tx{roots: table.Rows()} }

// NameConstraints returns the unique constraints whose violation means that the batch has to run again.
func NameConstraints() []string {
	return []string{"notify_templates_pkey", "notify_template_versions_pkey"}
}

var _ commit.Participant = (*Tx)(nil)

// CanOverlap returns true: changed templates are latched, and messages are rendered from versions, which are immutable.
func (tx *Tx) CanOverlap() bool { return true }

// Name identifies a template.
type Name struct {
	Tenant  int32
	Channel send.Channel
	Name    string
	Locale  string // requested; empty: the template's default
	Version int32  // 0: the newest
}

// Use is a template from which a message of the batch is rendered.
type Use struct {
	tx       *Tx
	name     Name
	found    bool
	version  int32
	key      cacheKey
	compiled *Compiled
	err      error
}

// Want requests a template for rendering.
func (tx *Tx) Want(n Name) *Use {
	for _, u := range tx.uses {
		if u.name == n {
			return u
		}
	}
	u := &Use{tx: tx, name: n}
	tx.uses = append(tx.uses, u)
	return u
}

// Lock locks the templates to be changed.
func (tx *Tx) Lock(p *commit.Pipe) {
	wanted := tx.Sorted()
	if len(wanted) == 0 {
		return
	}
	var arg db.TemplateLockParams
	for _, r := range wanted {
		arg.Tenants = append(arg.Tenants, r.Key.tenant)
		arg.Channels = append(arg.Channels, r.Key.channel)
		arg.Names = append(arg.Names, r.Key.name)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.TemplateLock(p.Context(), d, arg)
		for _, r := range rows {
			v := root{defaultLocale: r.DefaultLocale, last: r.LastVersion, locales: r.Locales, versions: r.Versions,
				changedAt: r.ChangedAt}
			if r.DeletedAt != nil {
				v.deletedAt = *r.DeletedAt
			}
			tx.Load(wanted[r.N-1], v)
		}
		return err
	})
}

// Lookup finds the versions to render from, and the content hashes of locked templates.
func (tx *Tx) Lookup(p *commit.Pipe) {
	if wanted := tx.Sorted(); len(wanted) > 0 {
		var arg db.TemplateHashesParams
		for _, r := range wanted {
			arg.Tenants = append(arg.Tenants, r.Key.tenant)
			arg.Channels = append(arg.Channels, r.Key.channel)
			arg.Names = append(arg.Names, r.Key.name)
		}
		p.Queue(func(d commit.DB) error {
			rows, err := q.TemplateHashes(p.Context(), d, arg)
			for _, r := range rows {
				v := &wanted[r.N-1].Value
				if v.hashes == nil {
					v.hashes = map[int32][sha256.Size]byte{}
				}
				v.hashes[r.Version] = [sha256.Size]byte(r.DefinitionHash)
			}
			return err
		})
	}
	if len(tx.uses) > 0 {
		tx.find(p)
	}
}

func (tx *Tx) find(p *commit.Pipe) {
	var arg db.TemplateFindParams
	for _, u := range tx.uses {
		u.found, u.compiled, u.err = false, nil, nil
		arg.Tenants = append(arg.Tenants, u.name.Tenant)
		arg.Channels = append(arg.Channels, string(u.name.Channel))
		arg.Names = append(arg.Names, u.name.Name)
		arg.Locales = append(arg.Locales, joinFallbacks(u.name.Locale))
		arg.Versions = append(arg.Versions, u.name.Version)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.TemplateFind(p.Context(), d, arg)
		for _, r := range rows {
			u := tx.uses[r.N-1]
			u.found, u.version = true, r.Version
			u.key = cacheKey{[sha256.Size]byte(r.DefinitionHash), u.name.Channel, r.Locale}
			u.compiled = compiledCache.get(u.key)
		}
		return err
	})
}

// Resolve reads and compiles the definitions that are not cached.
func (tx *Tx) Resolve(p *commit.Pipe) {
	var arg db.TemplateDefinitionParams
	var unread []*Use
	for _, u := range tx.uses {
		if !u.found || u.compiled != nil || u.err != nil {
			continue
		}
		unread = append(unread, u)
		arg.Tenants = append(arg.Tenants, u.name.Tenant)
		arg.Channels = append(arg.Channels, string(u.name.Channel))
		arg.Names = append(arg.Names, u.name.Name)
		arg.Versions = append(arg.Versions, u.version)
	}
	if len(unread) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.TemplateDefinition(p.Context(), d, arg)
		for _, r := range rows {
			u := unread[r.N-1]
			u.compiled, u.err = compiledCache.load(u.key, r.Definition)
		}
		return err
	})
}

// Render renders a message, in Apply. offered values are used only if the template declares them. Returns faults
// TEMPLATE_NOT_FOUND and TEMPLATE_VARIABLES_INVALID.
func (u *Use) Render(values, offered map[string]any) (Rendered, error) {
	if u.err != nil {
		return Rendered{}, u.err
	}
	compiled, version, locale := u.current()
	if compiled == nil {
		f := NotFound.New("there is no template %s for %s", u.name.Name, u.name.Channel).With("template", u.name.Name)
		if u.name.Version > 0 {
			f.With("version", u.name.Version)
		}
		return Rendered{}, f.WithField("template", "must be a template of this channel that exists")
	}
	content, problems := compiled.Render(compiled.offer(values, offered))
	if len(problems) > 0 {
		for i := range problems { // paths of the request
			problems[i].Path = "template." + problems[i].Path
		}
		return Rendered{}, invalid(VariablesInvalid, problems).
			With("template", u.name.Name).With("version", version)
	}
	return Rendered{Content: content, Template: u.name.Name + "@" + strconv.Itoa(int(version)), Locale: locale,
		Definition: compiled.def}, nil
}

// current returns the template after the earlier commands of the batch; nil: there is none.
func (u *Use) current() (compiled *Compiled, version int32, locale string) {
	r := u.tx.roots.Wanted(key{u.name.Tenant, string(u.name.Channel), u.name.Name})
	if r == nil || !r.Exists {
		return u.compiled, u.version, u.key.locale
	}
	v := &r.Value
	if !v.deletedAt.IsZero() {
		return nil, 0, ""
	}
	if version = u.name.Version; version == 0 {
		version = v.versions[slices.Index(v.locales, Nearest(u.name.Locale, v.locales, v.defaultLocale))]
	}
	for i := range u.tx.versions {
		if x := &u.tx.versions[i]; x.key == r.Key && x.version == version {
			return x.compiled, version, x.locale
		}
	}
	return u.compiled, u.version, u.key.locale // a version number stays valid after its locale is deleted
}

// Definition returns the template's definition, in Apply; nil: there is none.
func (u *Use) Definition() *Definition {
	if compiled, _, _ := u.current(); compiled != nil {
		return compiled.def
	}
	return nil
}

func (tx *Tx) Mark() {
	tx.roots.Mark()
	tx.made = len(tx.versions)
}

func (tx *Tx) Undo() {
	tx.roots.Undo()
	tx.versions = tx.versions[:tx.made]
}

// Flush writes templates, then new versions.
func (tx *Tx) Flush(p *commit.Pipe) {
	if fresh := tx.Fresh(); len(fresh) > 0 {
		arg := insertParams(fresh)
		p.Queue(func(d commit.DB) error { return q.TemplateInsert(p.Context(), d, db.TemplateInsertParams(arg)) })
	}
	if changed := tx.Changed(); len(changed) > 0 {
		w := insertParams(changed)
		arg := db.TemplateUpdateParams{Tenants: w.Tenants, Channels: w.Channels, Names: w.Names,
			DefaultLocales: w.DefaultLocales,
			LastVersions:   w.LastVersions, Locales: w.Locales, Versions: w.Versions, ChangedAt: w.ChangedAt,
			DeletedAt: w.DeletedAt}
		p.Queue(func(d commit.DB) error { return q.TemplateUpdate(p.Context(), d, arg) })
	}
	if len(tx.versions) > 0 {
		arg := db.TemplateVersionInsertParams{Now: tx.Now}
		for i := range tx.versions {
			v := &tx.versions[i]
			arg.Tenants = append(arg.Tenants, v.tenant)
			arg.Channels = append(arg.Channels, v.channel)
			arg.Names = append(arg.Names, v.name)
			arg.Versions = append(arg.Versions, v.version)
			arg.Locales = append(arg.Locales, v.locale)
			arg.Definitions = append(arg.Definitions, string(v.definition))
			arg.DefinitionHashes = append(arg.DefinitionHashes, v.hash[:])
			arg.Principals = append(arg.Principals, v.caller.Principal)
			arg.RequestIds = append(arg.RequestIds, v.caller.RequestID)
		}
		p.Queue(func(d commit.DB) error { return q.TemplateVersionInsert(p.Context(), d, arg) })
	}
}

func insertParams(rows []*commit.Row[key, root]) (arg db.TemplateInsertParams) {
	for _, r := range rows {
		v := &r.Value
		versions := make([]string, len(v.versions))
		for i, n := range v.versions {
			versions[i] = strconv.Itoa(int(n))
		}
		arg.Tenants = append(arg.Tenants, r.Key.tenant)
		arg.Channels = append(arg.Channels, r.Key.channel)
		arg.Names = append(arg.Names, r.Key.name)
		arg.DefaultLocales = append(arg.DefaultLocales, v.defaultLocale)
		arg.LastVersions = append(arg.LastVersions, v.last)
		arg.Locales = append(arg.Locales, strings.Join(v.locales, ","))
		arg.Versions = append(arg.Versions, strings.Join(versions, ","))
		arg.ChangedAt = append(arg.ChangedAt, v.changedAt)
		arg.DeletedAt = append(arg.DeletedAt, v.deletedAt)
	}
	return arg
}
