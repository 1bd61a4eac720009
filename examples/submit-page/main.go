// Command submit-page serves a page with a button that pays once, however often it is clicked. README.md
// explains how to try it.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"html/template"
	"log"
	"net/http"
	"time"
)

//go:embed page.html
var text string

// page serves the page for a ledgerd at api.
func page(api string) http.Handler {
	t := template.Must(template.New("page").Parse(text))
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store") // a cached page would have an old page's state
		if err := t.Execute(w, struct{ API string }{api}); err != nil {
			log.Print(err)
		}
	})
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address to serve the page on")
	api := flag.String("ledgerd", "http://127.0.0.1:8080", "URL of the ledgerd that the page calls")
	flag.Parse()
	fmt.Printf("http://%s\n", *listen)
	s := &http.Server{Addr: *listen, Handler: page(*api), ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(s.ListenAndServe())
}
