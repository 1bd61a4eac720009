// Package settings decodes parts of settings files. It is independent of the kinds of settings.
//
// Unknown fields are errors. Errors name the field, never a value of the file, because values may be secrets.
package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"time"
)

// Name matches the names of providers and gateways, which appear in paths, metrics and tables.
var Name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Decode decodes options into a struct with json tags. Unknown fields are errors. A string env:NAME or
// file:PATH is replaced by the value of the variable or the content of the file.
func Decode(options map[string]any, into any) error {
	resolved, err := resolve("", options)
	if err != nil {
		return err
	}
	text, err := json.Marshal(resolved)
	if err != nil {
		return errors.New("the settings cannot be read")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return redact(err)
	}
	return nil
}

// redact rewrites an error of package json without values, because settings contain secrets.
func redact(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("%s: must be a %s, not a %s", kind.Field, typeName(kind.Type.String()), kind.Value)
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		return fmt.Errorf("unknown setting %s", strings.TrimPrefix(err.Error(), "json: unknown field "))
	}
	return err
}

func typeName(t string) string {
	switch {
	case strings.HasPrefix(t, "int"), strings.HasPrefix(t, "float"):
		return "number"
	case strings.HasPrefix(t, "[]"):
		return "list"
	case strings.HasPrefix(t, "map["), strings.Contains(t, "."):
		return "group of settings"
	case t == "bool":
		return "true or false"
	}
	return "text"
}

// resolve replaces references in a value, recursively.
func resolve(at string, value any) (any, error) {
	switch v := value.(type) {
	case string:
		text, err := Reference(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		return text, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, part := range v {
			var err error
			if out[name], err = resolve(join(at, name), part); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[any]any:
		return nil, fmt.Errorf("%s: names must be strings", at)
	case []any:
		out := make([]any, len(v))
		for i, part := range v {
			var err error
			if out[i], err = resolve(fmt.Sprintf("%s[%d]", at, i), part); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return value, nil
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// maxReference limits a file that settings refer to, in bytes.
const maxReference = 64 << 10

// Reference resolves one string. Line ends at the end of a file are dropped.
func Reference(text string) (string, error) {
	if name, ok := strings.CutPrefix(text, "env:"); ok {
		value, ok := os.LookupEnv(name)
		if !ok {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, nil
	}
	if name, ok := strings.CutPrefix(text, "file:"); ok {
		value, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		if len(value) > maxReference {
			return "", fmt.Errorf("%s: has more than %d bytes", name, maxReference)
		}
		return strings.TrimRight(string(value), "\r\n"), nil
	}
	return text, nil
}

// Duration is a time.Duration written as 10s.
type Duration time.Duration

func (d *Duration) UnmarshalJSON(text []byte) error {
	var written string
	if err := json.Unmarshal(text, &written); err != nil {
		return errors.New("a duration must be written as 10s or 500ms")
	}
	value, err := time.ParseDuration(written)
	if err != nil || value <= 0 {
		return errors.New("a duration must be written as 10s or 500ms, and be positive")
	}
	*d = Duration(value)
	return nil
}

// Value returns d as a time.Duration.
func (d Duration) Value() time.Duration { return time.Duration(d) }

// Loopback reports whether a host is this machine: localhost or a loopback address. Secrets may go there without TLS.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
