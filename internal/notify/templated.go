package notify

import (
	"encoding/json"

	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// Templated is a message rendered from a template when it is accepted.
type Templated struct {
	template.Name // Tenant and Channel are copied from the message
	Variables     map[string]any
}

// need requests the template. The message's identity is the template's name, locale, variables and, if given, version.
// So a repeat is recognised even if the template has changed in between.
func (t *Templated) need(tx *Tx, p *Params) {
	// json.Marshal sorts the keys of maps, and cannot fail on values decoded from JSON.
	p.Identity, _ = json.Marshal([]any{"template", t.Name.Name, t.Version, t.Locale, t.Variables})
	use := tx.Templates().Want(t.Name)
	p.Render = func() (Rendered, error) {
		r, err := use.Render(t.Variables, nil)
		if err != nil {
			return Rendered{}, err
		}
		return Rendered{Content: r.Content, Template: r.Template, Locale: r.Locale, OnUnknown: r.OnUnknown,
			Priority:    r.Priority,
			MaxAttempts: r.MaxAttempts, GiveUpAfter: r.Life()}, nil
	}
}
