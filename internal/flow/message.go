package flow

import (
	"encoding/json"

	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// SendTemplate sends a message that is written with a template, in the batch: with what it says then. Its answer is a
// *notify.Message.
type SendTemplate struct {
	notify.SendCommand
	Template  template.Name // of the tenant and channel of the message
	Variables map[string]any
	// Unsaid is what the caller has left open: there the template has its say.
	Unsaid struct{ Priority, OnUnknown, MaxAttempts, GiveUpAfter bool }

	use *template.Use
}

// Need names the template and the message. What it will say is known by the template, its version if one is named, the
// locale and the variables: so a repeat is one also when the template has changed meanwhile.
func (c *SendTemplate) Need(b *Books) {
	c.use = b.Templates().Want(c.Template)
	// Maps are written sorted by name.
	c.Identity, _ = json.Marshal([]any{"template", c.Template.Name, c.Template.Version, c.Template.Locale, c.Variables})
	c.Render = func() (notify.Rendered, error) {
		r, err := c.use.Render(c.Variables, nil)
		if err != nil {
			return notify.Rendered{}, err
		}
		return notify.Rendered{Content: r.Content, Template: r.Template, Locale: r.Locale}, nil
	}
	c.SendCommand.Need(b.Messages())
}

// Apply writes and accepts the message, or answers the first one. Returns faults TEMPLATE_NOT_FOUND,
// TEMPLATE_VARIABLES_INVALID and those of notify.SendCommand.
func (c *SendTemplate) Apply(b *Books) (any, error) {
	run := c.SendCommand
	if d := c.use.Definition(); d != nil {
		if c.Unsaid.Priority && d.Priority != nil {
			run.Priority = *d.Priority
		}
		if c.Unsaid.OnUnknown && d.OnUnknown != "" {
			run.OnUnknown = d.OnUnknown
		}
		if c.Unsaid.MaxAttempts && d.MaxAttempts != 0 {
			run.MaxAttempts = d.MaxAttempts
		}
		if c.Unsaid.GiveUpAfter && d.Life() != 0 {
			run.GiveUpAfter = d.Life()
		}
	}
	return run.Apply(b.Messages())
}
