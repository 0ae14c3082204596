#!/bin/sh
# Packs the files that an operator without a checkout needs. With these files Compose pulls the image
# instead of building it. Usage:
# bundle.sh <image> <file.tar.gz>
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
mkdir "$folder/plant-store"
cp -R docker-compose.yml deploy docs CHANGELOG.md LICENSE README.md SECURITY.md "$folder/plant-store"
cd "$folder/plant-store"
sed -i.bak '/^ *build:/d' docker-compose.yml
sed -i.bak "s|localhost/plant-store:[^}]*|$1|" deploy/service.yml
rm docker-compose.yml.bak deploy/service.yml.bak
cd "$OLDPWD"
tar -czf "$2" -C "$folder" plant-store
