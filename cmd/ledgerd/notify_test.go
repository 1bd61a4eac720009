package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
)

func TestATestMessageShowsWhetherProvidersWork(t *testing.T) {
	server := emailtest.Start(t, emailtest.Options{})
	dir := t.TempDir()
	file := filepath.Join(dir, "notify.yaml")
	text := fmt.Sprintf("email:\n  - kind: smtp\n    host: %s\n    port: %d\n    tls: none\n    from: "+
		"no-reply@shop.example\n    overrides: {shop: {from: hello@shop.example}}\nsms:\n  - kind: "+
		"file\n    path: %s\n", server.Host, server.Port, filepath.Join(dir, "sms"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	try := func(args ...string) (int, string) {
		var out, errOut bytes.Buffer
		code := run(t.Context(), append([]string{"notify", "test", "--notify", file}, args...), &out, &errOut)
		return code, out.String() + errOut.String()
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--channel", "email", "--to", "ada@customer.example"}, 0, "smtp accepted the message in "},
		{[]string{"--channel", "email", "--to", "ada@customer.example", "--tenant", "shop"}, 0,
			`with the id "4F2C7A1B"`},
		{[]string{"--channel", "sms", "--to", "+8613812345678", "--template", "file=T1", "--param", "code=1,2",
			"--param", "b=3"}, 0, "file accepted the message in "},
		{[]string{"--channel", "push", "--to", "x"}, 1, "has no provider for push"},
		{[]string{"--channel", "email", "--to", "nobody"}, 1, "smtp, after "},
		{[]string{"--channel", "sms", "--to", "x", "--param", "code"}, 1, "must be NAME=VALUE"},
		{[]string{"--channel", "fax", "--to", "x"}, 2, "must be one of"},
	} {
		if code, out := try(c.args...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%v: %d, %s", c.args, code, out)
		}
	}
	var from []string
	for _, m := range server.Messages() {
		from = append(from, m.From)
	}
	if strings.Join(from, " ") != "no-reply@shop.example hello@shop.example" {
		t.Errorf("from %v", from)
	}
	sms, err := os.ReadFile(filepath.Join(dir, "sms"))
	if err != nil || !strings.Contains(string(sms),
		`"template":{"file":"T1"},"params":[{"name":"code","value":"1,2"},{"name":"b","value":"3"}]`) {
		t.Errorf("%s, %v", sms, err)
	}
}

func TestMessagesOfADeletedDatabaseAreRenamed(t *testing.T) {
	dir := t.TempDir()
	c := &devCmd{Dir: filepath.Join(dir, "data")}
	name := filepath.Join(dir, "data.messages")
	for _, there := range []bool{true, false} {
		if there {
			if err := os.Mkdir(c.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Remove(c.Dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("sent\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := c.messages()
		if err != nil || got != name {
			t.Errorf("%s, %v", got, err)
		}
		if _, err := os.Stat(name); (err == nil) != there {
			t.Errorf("with a database: %v, and its messages: %v", there, err)
		}
	}
	if _, err := os.Stat(name + ".old"); err != nil {
		t.Error(err)
	}
	if _, err := (&devCmd{Dir: filepath.Join(dir, "new")}).messages(); err != nil {
		t.Error(err)
	}
}
