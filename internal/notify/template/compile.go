package template

import (
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"maps"
	"slices"
	"strings"
	texttemplate "text/template"
	"text/template/parse"
	"unicode/utf8"

	"golang.org/x/text/language"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Limits of a rendered message.
const (
	MaxRendered     = 512 << 10 // bytes per part of an e-mail
	MaxRenderedSMS  = 1_600     // characters: more than ten SMS parts, the most that providers accept
	MaxRenderedPush = 2_000     // bytes of title or text: providers accept 4 KiB in total
)

// Compiled is a definition ready to render. Safe for concurrent use.
type Compiled struct {
	channel   send.Channel
	def       *Definition
	locale    language.Tag
	digits    digits
	subject   renderer
	text      renderer
	html      renderer
	providers []compiledProvider
}

type compiledProvider struct {
	name, id string
	params   []compiledParam
}

type compiledParam struct {
	name  string
	value renderer
}

type renderer interface {
	Execute(w io.Writer, data any) error
}

// compile checks and compiles a definition. It returns all problems.
func compile(d *Definition, channel send.Channel, locale string) (*Compiled, []Problem) {
	p := d.checkFields(channel)
	tag, err := language.Parse(locale)
	if err != nil {
		p.add("locale", "is not a BCP 47 tag, such as en or zh-Hant-TW")
	}
	if len(p) > 0 {
		return nil, p
	}
	c := &Compiled{channel: channel, def: d, locale: tag, digits: learnDigits(tag)}
	funcs := customFunctions(tag, c.digits)
	one := func(path, text string, html, lines bool) renderer {
		if !lines {
			text = strings.TrimSpace(text)
		}
		if text == "" {
			return nil
		}
		r, problem := parseText(text, d.Variables, funcs, html, lines)
		if problem != "" {
			p.add(path, "%s", problem)
		}
		return r
	}
	c.subject = one("subject", d.Subject, false, false)
	c.text = one("text", d.Text, false, true)
	c.html = one("html", d.HTML, true, true)
	for _, name := range sortedKeys(d.Providers) {
		provider := compiledProvider{name: name, id: d.Providers[name].ID}
		for i, param := range d.Providers[name].Params {
			path := fmt.Sprintf("%s.params[%d].value", providerPath(name), i)
			provider.params = append(provider.params, compiledParam{param.Name, one(path, param.Value, false, false)})
		}
		c.providers = append(c.providers, provider)
	}
	if len(p) > 0 {
		return nil, p
	}
	return c, nil
}

// Compile checks and compiles a definition. It returns all problems.
func Compile(d *Definition, channel send.Channel, locale string) (*Compiled, []Problem) {
	return compile(d, channel, locale)
}

// builtins are functions of text/template that the parser has to know.
var builtins = map[string]any{"and": 0, "or": 0, "not": 0, "eq": 0, "ne": 0, "lt": 0, "le": 0, "gt": 0, "ge": 0,
	"len": 0}

func parseText(text string, vars []Variable, funcs map[string]any, html, lines bool) (renderer, string) {
	trees, err := parse.Parse("t", text, "", "", funcs, builtins)
	if err != nil {
		return nil, parseProblem(err)
	}
	if len(trees) > 1 {
		return nil, "must not define another template"
	}
	tree := trees["t"]
	if tree == nil { // only white space and definitions
		return nil, "is empty"
	}
	if problem := checkText(tree, vars, lines); problem != "" {
		return nil, problem
	}
	if !html {
		t, err := texttemplate.New("t").Funcs(funcs).Option("missingkey=error").AddParseTree("t", tree)
		if err != nil {
			return nil, parseProblem(err)
		}
		return t, ""
	}
	t, err := htmltemplate.New("t").Funcs(funcs).Option("missingkey=error").AddParseTree("t", tree)
	if err != nil {
		return nil, parseProblem(err)
	}
	// The first execution escapes the template, and reports variables in places that cannot be made safe.
	empty := map[string]any{}
	for i := range vars {
		empty[vars[i].Name] = vars[i].zeroValue()
	}
	var bad *htmltemplate.Error
	if err := t.Execute(io.Discard, empty); errors.As(err, &bad) {
		return nil, fmt.Sprintf("line %d: %s", bad.Line, bad.Description)
	}
	return t, ""
}

// parseProblem returns a parse error without the internal template name.
func parseProblem(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "template: "), "t:")
}

// Rendered is a rendered message.
type Rendered struct {
	Content  send.Content
	Template string // name@version of a stored template
	Locale   string // of the template version
	*Definition
}

// offer adds offered values for which the template has variables. They override the caller's values.
func (c *Compiled) offer(values, offered map[string]any) map[string]any {
	if len(offered) == 0 {
		return values
	}
	all := maps.Clone(values)
	if all == nil {
		all = map[string]any{}
	}
	for i := range c.def.Variables {
		name := c.def.Variables[i].Name
		if v, ok := offered[name]; ok {
			all[name] = v
		}
	}
	return all
}

// Render renders a message. It returns either the whole message or all problems.
func (c *Compiled) Render(values map[string]any) (send.Content, []Problem) {
	b := binder{locale: c.locale, digits: c.digits}
	data := b.bind(c.def.Variables, values)
	p := b.problems
	if len(p) > 0 {
		for i := range p {
			p[i].Path = "variables." + p[i].Path
		}
		return send.Content{}, p
	}
	var out send.Content
	run := func(path string, r renderer, most int) string {
		s, problem := execute(r, data, most)
		if problem != "" {
			p.add(path, "%s", problem)
		}
		return s
	}
	most := MaxRendered
	switch c.channel {
	case send.SMS:
		most = 4 * MaxRenderedSMS
	case send.Push:
		most = MaxRenderedPush
	}
	out.Subject = strings.TrimSpace(run("subject", c.subject, 4*MaxSubject))
	out.Text = run("text", c.text, most)
	out.HTML = run("html", c.html, MaxRendered)
	for i := range c.providers {
		provider := &c.providers[i]
		if out.Template == nil {
			out.Template, out.ProviderParams = map[string]string{}, map[string][]send.Param{}
		}
		out.Template[provider.name] = provider.id
		params := make([]send.Param, len(provider.params))
		for j, param := range provider.params {
			path := fmt.Sprintf("%s.params[%d]", providerPath(provider.name), j)
			params[j] = send.Param{Name: param.name, Value: run(path, param.value, 4*MaxSubject)}
		}
		out.ProviderParams[provider.name] = params
	}
	switch {
	case strings.ContainsFunc(out.Subject, breaks):
		p.add("subject", "would contain a line break")
	case out.Subject == "" && c.channel == send.Email && len(p) == 0:
		p.add("subject", "would be empty")
	case strings.TrimSpace(out.Text+out.HTML) == "" && (c.channel != send.Push || out.Subject == "") &&
		len(out.Template) == 0 && len(p) == 0:
		p.add("text", "would be empty")
	}
	if c.channel == send.SMS && utf8.RuneCountInString(out.Text) > MaxRenderedSMS {
		p.add("text", "would have more than %d characters", MaxRenderedSMS)
	}
	if len(p) > 0 {
		return send.Content{}, p
	}
	return out, nil
}

var errTooLong = errors.New("too long")

type boundedText struct {
	strings.Builder
	most int
}

func (b *boundedText) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, errTooLong
	}
	return b.Builder.Write(p)
}

// unsafe is the placeholder that html/template inserts for an unsafe value.
const unsafe = "ZgotmplZ"

func execute(r renderer, data any, most int) (string, string) {
	if r == nil {
		return "", ""
	}
	w := boundedText{most: most}
	switch err := r.Execute(&w, data); {
	case errors.Is(err, errTooLong):
		return "", fmt.Sprintf("would be longer than %d bytes", most)
	case err != nil:
		return "", parseProblem(err)
	}
	s := w.String()
	if _, html := r.(*htmltemplate.Template); html && strings.Contains(s, unsafe) {
		return "", "a variable is unsafe in its place, such as a string in a link: declare it with kind url"
	}
	return s, ""
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
