package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/notify/internal/httpsend"
)

// JSON describes the reports of a provider in JSON, with places as JSON pointers (RFC 6901).
type JSON struct {
	// ListAt is where the list is; / is the whole body. Empty: the body is one report.
	ListAt string `json:"list_at"`
	// KeyAt is where our key is, if the provider echoes it; IDAt where its own number is.
	KeyAt string `json:"key_at"`
	IDAt  string `json:"id_at"`
	// StatusAt is where the state is; those neither in Delivered nor in Undelivered are on the way.
	StatusAt    string   `json:"status_at"`
	Delivered   []string `json:"delivered"`
	Undelivered []string `json:"undelivered"`
	CodeAt      string   `json:"code_at"`
	TextAt      string   `json:"text_at"`
}

var errForm = errors.New("report: not in the provider's format")

// Read reads reports. Their codes begin with a prefix.
func (j *JSON) Read(body []byte, prefix string) (out []Report, err error) {
	said, err := Parse(body)
	if err != nil {
		return nil, errForm
	}
	list := []any{said}
	if j.ListAt != "" {
		v, _ := pointed(said, strings.TrimSuffix(j.ListAt, "/"))
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

// Parse reads JSON, with numbers as they are written.
func Parse(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return v, nil
}

// At is what a JSON pointer points at, as text; not found if it points at nothing, a list or an object.
func At(v any, pointer string) (string, bool) {
	if pointer == "" {
		return "", false
	}
	v, _ = pointed(v, pointer)
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

// pointed is what a JSON pointer (RFC 6901) points at.
func pointed(v any, pointer string) (any, bool) {
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
