package template

import (
	"fmt"
	"strconv"

	"golang.org/x/text/feature/plural"
	"golang.org/x/text/language"
)

// function type-checks a call. The implementation is in text/template or in customFunctions.
type function struct {
	staticType func(args []staticType) (staticType, string)
}

// functions are all functions that templates can call.
var functions = map[string]function{
	"not": {func(a []staticType) (staticType, string) {
		return want(staticType{kind: Bool}, len(a) == 1, "takes one value")
	}},
	"and": {either}, "or": {either},
	"eq": {compare(Integer, String, Bool)}, "ne": {compare(Integer, String, Bool)},
	"lt": {compare(Integer)}, "le": {compare(Integer)}, "gt": {compare(Integer)}, "ge": {compare(Integer)},
	"len": {func(a []staticType) (staticType, string) {
		return want(staticType{kind: Integer}, len(a) == 1 && a[0].list, "takes a list")
	}},
	"number": {func(a []staticType) (staticType, string) {
		return want(staticType{kind: String}, takes(a, Amount) || takes(a, Integer), "takes an amount or an integer")
	}},
	"asset": {func(a []staticType) (staticType, string) {
		return want(staticType{kind: String}, takes(a, Amount), "takes an amount")
	}},
	"date": {func(a []staticType) (staticType, string) {
		return want(staticType{kind: String}, takes(a, Time), "takes a time")
	}},
	"clock": {func(a []staticType) (staticType, string) {
		return want(staticType{kind: String}, takes(a, Time), "takes a time")
	}},
	"plural": {func(a []staticType) (staticType, string) {
		ok := len(a) >= 3 && len(a)%2 == 1 && takes(a[:1], Integer)
		for i := 1; ok && i < len(a); i++ {
			ok = takes(a[i:i+1], String)
		}
		return want(staticType{kind: String}, ok,
			`takes an integer, then pairs of a plural form and a text, such as "one" "item" "other" "items"`)
	}},
}

func want(s staticType, ok bool, problem string) (staticType, string) {
	if ok {
		return s, ""
	}
	return s, problem
}

func takes(a []staticType, k Kind) bool { return len(a) == 1 && a[0].kind == k && !a[0].list }

// either type-checks and/or. The result has the common type of the arguments.
func either(a []staticType) (staticType, string) {
	if len(a) < 2 {
		return staticType{}, "takes two values or more"
	}
	s := a[0]
	for _, x := range a[1:] {
		s.multiline = s.multiline || x.multiline
		if x.kind != s.kind || x.list != s.list || x.list || x.kind == Record {
			s = staticType{} // usable only as a condition
		}
	}
	return s, ""
}

func compare(kinds ...Kind) func([]staticType) (staticType, string) {
	return func(a []staticType) (staticType, string) {
		for _, k := range kinds {
			if len(a) == 2 && takes(a[:1], k) && takes(a[1:], k) {
				return staticType{kind: Bool}, ""
			}
		}
		return staticType{}, fmt.Sprintf("takes two values of the same kind, one of %v", kinds)
	}
}

// customFunctions implement the functions that text/template does not have.
func customFunctions(locale language.Tag, d digits) map[string]any {
	return map[string]any{
		"number": func(v any) string {
			if s, ok := v.(formatted); ok {
				return s.at(1)
			}
			return d.format(fmt.Sprint(v))
		},
		"asset": func(s formatted) string { return s.at(2) },
		"date":  func(s formatted) string { return s.at(1) },
		"clock": func(s formatted) string { return s.at(2) },
		"plural": func(v any, forms ...string) (string, error) {
			n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
			if err != nil {
				return "", err
			}
			return pluralForm(locale, n, forms)
		},
	}
}

var pluralForms = map[plural.Form]string{
	plural.Other: "other", plural.Zero: "zero", plural.One: "one", plural.Two: "two",
	plural.Few: "few", plural.Many: "many",
}

func pluralForm(locale language.Tag, n int64, forms []string) (string, error) {
	if n < 0 {
		n = -n
	}
	// For large whole numbers, plural rules depend only on the last digits.
	small := n
	if n > 1_000_000 {
		small = 1_000_000 + n%1_000_000
	}
	form, other, has := pluralForms[plural.Cardinal.MatchPlural(locale, int(small), 0, 0, 0, 0)], "", false
	for i := 0; i+1 < len(forms); i += 2 {
		switch forms[i] {
		case form:
			return forms[i+1], nil
		case "other":
			other, has = forms[i+1], true
		}
	}
	if !has {
		return "", fmt.Errorf("plural has no text for %s and none for other", form)
	}
	return other, nil
}
