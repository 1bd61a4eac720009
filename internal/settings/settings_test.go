package settings_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/settings"
)

type own struct {
	Name  string            `json:"name"`
	Keys  []string          `json:"keys"`
	Wait  settings.Duration `json:"wait"`
	Count int               `json:"count"`
	Group struct {
		Secret string `json:"secret"`
	} `json:"group"`
}

func TestDecode(t *testing.T) {
	t.Setenv("SETTINGS_KEY", "pencil")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("eraser\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var o own
	err := settings.Decode(map[string]any{"name": "n", "keys": []any{"env:SETTINGS_KEY", "file:" + file}, "wait": "2s",
		"group": map[string]any{"secret": "env:SETTINGS_KEY"}}, &o)
	if err != nil || o.Name != "n" || strings.Join(o.Keys, " ") != "pencil eraser" || o.Group.Secret != "pencil" ||
		o.Wait.Value() != 2*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestErrorsNameTheFieldAndNoValue(t *testing.T) {
	t.Setenv("SETTINGS_KEY", "pencil")
	for _, c := range []struct {
		options map[string]any
		want    string
	}{
		{map[string]any{"colour": "pencil"}, `unknown setting "colour"`},
		{map[string]any{"group": map[string]any{"key": "pencil"}}, `unknown setting "key"`},
		{map[string]any{"name": []any{"pencil"}}, "name: must be a text"},
		{map[string]any{"keys": "env:SETTINGS_KEY"}, "keys: must be a list, not a string"},
		{map[string]any{"count": "env:SETTINGS_KEY"}, "count: must be a number, not a string"},
		{map[string]any{"group": "env:SETTINGS_KEY"}, "group: must be"},
		{map[string]any{"keys": []any{"x", "env:SETTINGS_NOT_SET"}},
			"keys[1]: the environment variable SETTINGS_NOT_SET is not set"},
		{map[string]any{"group": map[string]any{"secret": "file:/does/not/exist"}}, "group.secret: "},
		{map[string]any{"group": map[any]any{1: "pencil"}}, "group: names must be strings"},
		{map[string]any{"wait": 5}, "a duration must be written as 10s"},
		{map[string]any{"wait": "-1s"}, "a duration must be written as 10s"},
	} {
		err := settings.Decode(c.options, &own{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "pencil") {
			t.Errorf("%v: %v, want %q", c.options, err, c.want)
		}
	}
}
