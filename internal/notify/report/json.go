package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// JSON describes a provider's reports in JSON. Places are JSON pointers (RFC 6901).
type JSON struct {
	// ListAt is the list of reports; / is the whole body. Empty: the body is one report.
	ListAt string `json:"list_at"`
	// KeyAt is the message's key, if the provider returns it; IDAt the provider's message id.
	KeyAt string `json:"key_at"`
	IDAt  string `json:"id_at"`
	// StatusAt is the status. Statuses that are neither in Delivered nor in Undelivered are ignored.
	StatusAt    string   `json:"status_at"`
	Delivered   []string `json:"delivered"`
	Undelivered []string `json:"undelivered"`
	CodeAt      string   `json:"code_at"`
	TextAt      string   `json:"text_at"`
}

var errForm = errors.New("report: not in the provider's format")

// Read parses reports. Codes get the given prefix.
func (j *JSON) Read(body []byte, prefix string) (out []Report, err error) {
	said, err := Parse(body)
	if err != nil {
		return nil, errForm
	}
	list := []any{said}
	if j.ListAt != "" {
		v, _ := resolve(said, strings.TrimSuffix(j.ListAt, "/"))
		all, ok := v.([]any)
		if !ok {
			return nil, errForm
		}
		list = all
	}
	for _, v := range list {
		status, _ := At(v, j.StatusAt)
		one := Report{Delivered: slices.Contains(j.Delivered, status)}
		if !one.Delivered && !slices.Contains(j.Undelivered, status) {
			continue
		}
		one.Key, _ = At(v, j.KeyAt)
		id, _ := At(v, j.IDAt)
		one.ProviderMessageID = httpsend.Cut(id, 256)
		if !one.Delivered {
			code, _ := At(v, j.CodeAt)
			text, _ := At(v, j.TextAt)
			one.Code, one.Text = httpsend.Code(prefix, code), httpsend.Clean(nil, text)
		}
		out = append(out, one)
	}
	return out, nil
}

// Parse parses JSON, keeping numbers as written.
func Parse(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return v, nil
}

// At returns the string, number or boolean at a JSON pointer; ok is false for anything else.
func At(v any, pointer string) (string, bool) {
	if pointer == "" {
		return "", false
	}
	v, _ = resolve(v, pointer)
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// resolve returns the value at a JSON pointer (RFC 6901).
func resolve(v any, pointer string) (any, bool) {
	for _, step := range strings.Split(pointer, "/")[1:] {
		step = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		switch here := v.(type) {
		case map[string]any:
			v = here[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(here) {
				return nil, false
			}
			v = here[i]
		default:
			return nil, false
		}
	}
	return v, v != nil
}
