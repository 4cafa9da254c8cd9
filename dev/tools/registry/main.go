// SPDX-License-Identifier: Apache-2.0

// The distribution project's registry with what the tests use of it (passwords in a file, storage in memory), and a
// chart repository: `registry charts ADDRESS DIRECTORY [CERTIFICATE KEY]` serves files over HTTP, to the user and
// password of CHARTS_USER and CHARTS_PASSWORD if there are any.
package main

import (
	"crypto/subtle"
	"log"
	"net/http"
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
)

func main() {
	if len(os.Args) > 3 && os.Args[1] == "charts" {
		log.Fatal(charts(os.Args[2], os.Args[3], os.Args[4:]))
	}
	if err := registry.RootCmd.Execute(); err != nil {
		os.Exit(1)
	}
}

func charts(address, directory string, pair []string) error {
	files := http.FileServer(http.Dir(directory))
	user, password := os.Getenv("CHARTS_USER"), os.Getenv("CHARTS_PASSWORD")
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, p, _ := r.BasicAuth()
		if user != "" && subtle.ConstantTimeCompare([]byte(u+":"+p), []byte(user+":"+password)) != 1 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		log.Printf("%s %s", r.Method, r.URL.Path)
		files.ServeHTTP(w, r)
	})
	if len(pair) == 2 {
		return http.ListenAndServeTLS(address, pair[0], pair[1], handler)
	}
	return http.ListenAndServe(address, handler)
}
