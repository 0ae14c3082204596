#!/bin/sh
# Packs the files that an operator without a checkout needs. With these files Compose pulls the image
# instead of building it. Links to other files lead to the repository. Usage:
# bundle.sh <image> <URL of the repository's files at the released commit> <file.tar.gz>
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
mkdir "$folder/plant-store"
cp -R docker-compose.yml deploy docs examples openapi.json CHANGELOG.md LICENSE README.md SECURITY.md "$folder/plant-store"
node release/links.ts "$folder/plant-store" "$2"
cd "$folder/plant-store"
sed -i.bak '/^ *build:/d' docker-compose.yml
sed -i.bak "s|localhost/plant-store:[^}]*|$1|" deploy/service.yml
rm docker-compose.yml.bak deploy/service.yml.bak
cd "$OLDPWD"
tar -czf "$3" -C "$folder" plant-store
