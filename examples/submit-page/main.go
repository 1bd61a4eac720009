// Command submit-page serves a page with a button that pays once, however often it is clicked, and a page of a sale, in
// which each buyer wins once. README.md explains how to try them.
package main

import (
	"embed"
	"flag"
	"fmt"
	"html/template"
	"log"
	"net/http"
	"time"
)

//go:embed page.html sale.html
var texts embed.FS

// page serves the pages for a ledgerd at api.
func page(api string) http.Handler {
	t := template.Must(template.ParseFS(texts, "*.html"))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "page.html"
		if r.URL.Path == "/sale" {
			name = "sale.html"
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store") // a cached page would have the state of an old page
		if err := t.ExecuteTemplate(w, name, struct{ API string }{api}); err != nil {
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
