package template

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reader reads committed templates without locks. Safe for concurrent use.
type Reader struct{ pool *pgxpool.Pool }

// NewReader returns a reader that uses the service's pool.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool} }

// Version is a stored version of a template.
type Version struct {
	Number     int32
	Locale     string
	Default    bool
	Definition Definition
	Principal  string
	RequestID  string
	CreatedAt  time.Time
	DeletedAt  time.Time // of the whole template; zero: not deleted
}

// Get returns the present version of every locale, or the version n.Version, deleted or not. Returns fault
// TEMPLATE_NOT_FOUND.
func (r *Reader) Get(ctx context.Context, n Name) ([]Version, error) {
	rows, err := q.TemplateGet(ctx, pg.Planned{DB: r.pool},
		db.TemplateGetParams{TenantID: n.Tenant, Channel: string(n.Channel), Name: n.Name, Version: n.Version})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, NotFound.New("there is no template %s for %s", n.Name, n.Channel).With("template", n.Name).
			WithField("name", "must be a template of this channel that exists")
	}
	versions := make([]Version, len(rows))
	for i := range rows {
		row := &rows[i]
		v := Version{Number: row.Version, Locale: row.Locale, Default: row.Locale == row.DefaultLocale,
			Principal: row.Principal, RequestID: row.RequestID, CreatedAt: row.CreatedAt}
		if row.DeletedAt != nil {
			v.DeletedAt = *row.DeletedAt
		}
		if err := json.Unmarshal(row.Definition, &v.Definition); err != nil {
			return nil, fmt.Errorf("read a template: %w", err)
		}
		versions[i] = v
	}
	return versions, nil
}

// Listed is a template in a list.
type Listed struct {
	Channel       send.Channel
	Name          string
	DefaultLocale string
	Locales       []string
	Versions      []int32 // parallel to Locales
	ChangedAt     time.Time
}

// List returns one page of templates by channel and name, optionally of one channel. Returns fault PAGE_TOKEN_INVALID.
func (r *Reader) List(ctx context.Context, tenant int32, channel send.Channel, size int,
	token string) ([]Listed, string, error) {
	pages := paging.Of("templates", tenant, string(channel))
	after, err := pages.After(token, 2)
	if err != nil {
		return nil, "", err
	}
	if after == nil {
		after = []string{"", ""}
	}
	return paging.Read(size, func(n int32) ([]db.TemplatePageRow, error) {
		return pg.FromSnapshot(ctx, r.pool, func(d pg.DB) ([]db.TemplatePageRow, error) {
			return q.TemplatePage(ctx, d, db.TemplatePageParams{TenantID: tenant, AfterChannel: after[0],
				AfterName: after[1], Channel: string(channel), Size: n})
		})
	}, func(row *db.TemplatePageRow) string { return pages.Token(row.Channel, row.Name) },
		func(row *db.TemplatePageRow) (Listed, error) {
			return Listed{send.Channel(row.Channel), row.Name, row.DefaultLocale, row.Locales, row.Versions,
				row.ChangedAt}, nil
		})
}

// Preview renders a message without sending it, and returns all problems. It uses the stored template, or d if d is not
// nil.
func (r *Reader) Preview(ctx context.Context, n Name, d *Definition,
	values map[string]any) (Rendered, []Problem, error) {
	locale, version := n.Locale, int32(0)
	if d == nil {
		rows, err := q.TemplateFind(ctx, pg.Planned{DB: r.pool},
			db.TemplateFindParams{Tenants: []int32{n.Tenant}, Channels: []string{string(n.Channel)},
				Names: []string{n.Name}, Locales: []string{joinFallbacks(n.Locale)}, Versions: []int32{n.Version}})
		if err != nil {
			return Rendered{}, nil, err
		}
		if len(rows) == 0 {
			return Rendered{}, nil, NotFound.New("there is no template %s for %s", n.Name, n.Channel).With("template",
				n.Name).WithField("name", "must be a template of this channel that exists")
		}
		n.Version, locale, version = rows[0].Version, rows[0].Locale, rows[0].Version
		found, err := r.Get(ctx, n)
		if err != nil {
			return Rendered{}, nil, err
		}
		d = &found[0].Definition
	}
	if locale == "" {
		locale = "en"
	}
	c, problems := compile(d, n.Channel, locale)
	if len(problems) > 0 {
		return Rendered{}, problems, nil
	}
	content, problems := c.Render(values)
	out := Rendered{Content: content, Locale: locale, Definition: d}
	if version > 0 {
		out.Template = fmt.Sprintf("%s@%d", n.Name, version)
	}
	return out, problems, nil
}
