package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImportAndExportRefuseInvalidArguments(t *testing.T) {
	dir := t.TempDir()
	mapping := filepath.Join(dir, "m.yaml")
	if err := os.WriteFile(mapping, []byte("biz_no: x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"import csv f.csv", 2, "missing flags: --mapping"},
		{"import csv --mapping " + mapping + " f.csv", 1, "mapping field biz_no: must name a column"},
		{"import csv --mapping " + mapping + "x f.csv", 2, "m.yamlx"},
		{"import hledger " + dir + "/none.journal", 1, "none.journal"},
		{"import hledger -", 1, "give --name"},
		{"import hledger --commodity $ f.json", 1, "--commodity"},
		{"import hledger --conversion-account a::b f.json", 1, "--conversion-account"},
		{"export hledger --commodity USD f", 2, "unexpected argument f"},
		{"export hledger --commodity USD", 1, "--commodity"},
	} {
		var out, errOut bytes.Buffer
		if code := run(t.Context(), strings.Fields(test.args), &out, &errOut); code != test.code ||
			!strings.Contains(errOut.String(), test.want) {
			t.Errorf("%s: exit code %d, not %d, %s", test.args, code, test.code, errOut.String())
		}
	}
}
