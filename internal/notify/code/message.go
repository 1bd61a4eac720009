package code

import (
	"fmt"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// DefaultTemplate is the name of the template for codes, unless the request names another. Without a tenant's template
// of this name a built-in one is used.
const DefaultTemplate = "code"

// Variables returns the variables offered to a template: the code, and its life in minutes.
func Variables(code string, life time.Duration) map[string]any {
	return map[string]any{"code": code, "minutes": int64(max(1, life/time.Minute))}
}

// Fit returns fault CODE_TEMPLATE_UNFIT if a template cannot contain a code.
func Fit(d *template.Definition) error {
	if d != nil && slices.ContainsFunc(d.Variables, func(v template.Variable) bool {
		return v.Name == "code" && v.Kind == template.String && !v.List
	}) {
		return nil
	}
	return Unfit.New("the template has no variable code of kind string")
}

// BuiltIn renders a built-in template in the nearest locale.
func BuiltIn(channel send.Channel, locale string, values map[string]any) (template.Rendered, error) {
	locale = template.Nearest(locale, builtInLocales, "en")
	c := builtIn[channel][locale]
	if c == nil {
		return template.Rendered{}, Unfit.New("there is no built-in template for codes by %s", channel)
	}
	content, problems := c.Render(values)
	if len(problems) > 0 {
		return template.Rendered{}, fmt.Errorf("write a code: %s %s", problems[0].Path, problems[0].Text)
	}
	return template.Rendered{Content: content, Template: DefaultTemplate + "@0", Locale: locale}, nil
}

// texts are subject and text of the built-in templates, by locale.
var texts = map[string][2]string{
	"en": {"Your code: {{.code}}", `{{.code}} is your code. It is good for {{.minutes}} {{plural .minutes "one" ` +
		`"minute" "other" "minutes"}}. Do not share it with anyone.`},
	"de": {"Ihr Code: {{.code}}", `{{.code}} ist Ihr Code. Er gilt {{.minutes}} {{plural .minutes "one" ` +
		`"Minute" "other" "Minuten"}}. Geben Sie ihn niemandem weiter.`},
	"es": {"Tu código: {{.code}}", `{{.code}} es tu código. Vale {{.minutes}} {{plural .minutes "one" "minuto" ` +
		`"other" "minutos"}}. No lo compartas con nadie.`},
	"fr": {"Votre code : {{.code}}", `{{.code}} est votre code. Il est valable {{.minutes}} {{plural .minutes ` +
		`"one" "minute" "other" "minutes"}}. Ne le donnez à personne.`},
	"ja":      {"認証コード: {{.code}}", `認証コードは{{.code}}です。有効期限は{{.minutes}}分です。誰にも教えないでください。`},
	"zh":      {"您的验证码：{{.code}}", `您的验证码是{{.code}}，{{.minutes}}分钟内有效。请勿告诉他人。`},
	"zh-Hant": {"您的驗證碼：{{.code}}", `您的驗證碼是{{.code}}，{{.minutes}}分鐘內有效。請勿告訴他人。`},
}

var builtIn, builtInLocales = compileBuiltIn()

func compileBuiltIn() (map[send.Channel]map[string]*template.Compiled, []string) {
	all := map[send.Channel]map[string]*template.Compiled{send.SMS: {}, send.Email: {}}
	var locales []string
	for locale, t := range texts {
		locales = append(locales, locale)
		for channel := range all {
			d := &template.Definition{Text: t[1],
				Variables: []template.Variable{{Name: "code", Kind: template.String, MaxLength: MaxDigits},
					{Name: "minutes", Kind: template.Integer}}}
			if channel == send.Email {
				d.Subject = t[0]
			}
			c, problems := template.Compile(d, channel, locale)
			if len(problems) > 0 {
				panic(fmt.Sprint("code: ", locale, problems))
			}
			all[channel][locale] = c
		}
	}
	return all, locales
}
