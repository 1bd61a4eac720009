package notify

import (
	"encoding/json"

	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// Templated is what a template writes a message with: what the template says when the message is accepted.
type Templated struct {
	template.Name // without tenant and channel: they are the message's
	Variables     map[string]any
}

// need names the template. What a message will say is known by the template, its version if one is named, the locale
// and the variables: so a repeat is one also when the template has changed meanwhile.
func (t *Templated) need(tx *Tx, p *Params) {
	// Maps are written sorted by name; what came as JSON can be written as JSON.
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
